"""The ledger as a Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class LedgerConfig(AppConfig):
    """Tasks, leases, outputs, events. Refuses to start on a bound that can't work."""

    name = "ledger"
    label = "longwatch_ledger"
    verbose_name = "Longwatch ledger"

    def ready(self) -> None:
        """Check the tunables once, at start: a bad one must not first show up in a worker."""
        from ledger import conf
        from ledger.alerts import addresses
        from ledger.checks import CHECKS, TAG

        conf.load()
        addresses.load_networks()
        for check in CHECKS:
            checks.register(check, TAG)
