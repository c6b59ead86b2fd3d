"""The scripts that stand in files of their own; tests/e2e/test_actions.py drives them all."""

from tests.e2e import (
    agent_scripts,
    alert_scripts,
    approval_scripts,
    bulk_scripts,
    fleet_scripts,
    lane_scripts,
    settings_scripts,
    view_scripts,
)

MORE_SCRIPTS = (
    alert_scripts.SCRIPTS | agent_scripts.SCRIPTS | settings_scripts.SCRIPTS
    | fleet_scripts.SCRIPTS | lane_scripts.SCRIPTS | view_scripts.SCRIPTS | bulk_scripts.SCRIPTS
    | approval_scripts.SCRIPTS
)  # fmt: skip
