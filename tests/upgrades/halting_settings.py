"""Today's settings and a later app's; `migrate` stops within the migration that HALT_AT names, when
all of it is done and nothing is committed, and touches HALT_FILE."""

import os
import time
from pathlib import Path
from typing import Any

from django.db.migrations.recorder import MigrationRecorder

from tests.outages.later_settings import *  # noqa: F403

_record = MigrationRecorder.record_applied


def record_and_halt(self: Any, app: str, name: str) -> None:
    """Django's own, then the halt."""
    _record(self, app, name)
    if os.environ.get("HALT_AT") == f"{app}.{name}":
        Path(os.environ["HALT_FILE"]).touch()
        time.sleep(120)


MigrationRecorder.record_applied = record_and_halt
