"""A workflow that only newer workers know."""

from __future__ import annotations

import os
from typing import Any

from django.db import connection

from ledger.workflows import Workflow

newcomer = Workflow("newcomer")


@newcomer.step
def arrive(ctx: Any) -> Any:
    """The only unit."""
    return {"arrived": True}


sessions = Workflow("sessions")


@sessions.step
def tell_session(ctx: Any) -> Any:
    """Which process ran this, on which session of the server, and what came back on it."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_backend_pid(), %s", [str(ctx.task_id)])
        else:
            cursor.execute("SELECT 0, %s", [str(ctx.task_id)])
        backend, echo = cursor.fetchone()
    return {"pid": os.getpid(), "backend": backend, "echo": echo}
