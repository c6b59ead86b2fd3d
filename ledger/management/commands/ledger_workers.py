"""`manage.py ledger_workers`: our `qcluster`, where that name is the project's own cluster."""

from __future__ import annotations

from ledger.management.commands.qcluster import Command

__all__ = ["Command"]
