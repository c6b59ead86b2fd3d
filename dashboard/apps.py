"""The dashboard as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    """Pages over the ledger: reads through its queries, writes through its transitions."""

    name = "dashboard"
    label = "longwatch_dashboard"
    verbose_name = "Longwatch dashboard"
