"""Today's settings and a later app's; `migrate` stops at the migration that HALT_AT names, when all
of it is done and its record is not, and touches HALT_FILE."""

import os
import time
from pathlib import Path
from typing import Any

from django.db.migrations.recorder import MigrationRecorder

from tests.outages.later_settings import *  # noqa: F403

_record = MigrationRecorder.record_applied


def halt_and_record(self: Any, app: str, name: str) -> None:
    """The halt, then Django's own."""
    if os.environ.get("HALT_AT") == f"{app}.{name}":
        Path(os.environ["HALT_FILE"]).touch()
        time.sleep(120)
    _record(self, app, name)


MigrationRecorder.record_applied = halt_and_record
