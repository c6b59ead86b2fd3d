"""Its question leaves a session open in every process that is forked afterwards."""

from __future__ import annotations

import warnings

from django.apps import AppConfig
from django.db import connection


class EagerConfig(AppConfig):
    """Asks in `ready`, as projects do that read settings of theirs from a table."""

    name = "tests.outages.eager"

    def ready(self) -> None:
        with warnings.catch_warnings(), connection.cursor() as cursor:
            warnings.simplefilter("ignore")
            cursor.execute("SELECT 1")
