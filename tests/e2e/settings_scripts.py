"""What a person does about their settings; tests/e2e/test_actions.py drives it in three ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger.models import Preference
from ledger.workflows import Workflow
from tests.e2e.hands import Mouse
from tests.e2e.kit import wait_until

SECONDS = 30.0


def wait_for(**fields: Any) -> None:
    """Wait until that is kept."""
    wait_until(lambda: Preference.objects.filter(**fields).exists(), SECONDS)


def save(hands: Mouse, three: Workflow) -> None:
    hands.page.goto("/")
    hands.press("Settings", "link")
    for label in ("2:37 pm", "Compact"):
        field = hands.page.get_by_label(label, exact=True)
        if hands.script and hands.__class__ is not Mouse:
            hands.reach(field.locator("xpath=../..").locator("input:checked"))  # type: ignore[attr-defined]
            hands.page.keyboard.press("ArrowRight")
        else:
            field.check()
    hands.press("Save settings")
    hands.page.get_by_text("Settings saved.").wait_for()
    wait_for(hours=12, density="compact", theme="system", keys=True, zone="UTC")
    assert hands.page.locator("html").get_attribute("data-density") == "compact"


def change_theme(hands: Mouse, three: Workflow) -> None:
    hands.page.goto("/legend/")
    hands.press("Theme: system")
    hands.find("Theme: light").wait_for()
    wait_for(theme="light")
    assert hands.page.locator("html").get_attribute("data-theme") == "light"


def take_zone(hands: Mouse, three: Workflow) -> None:
    hands.page.goto("/settings/")
    hands.page.locator("#id_zone").select_option("Asia/Kathmandu")
    hands.press("Save settings")
    hands.page.get_by_text("Settings saved.").wait_for()
    wait_for(zone="Asia/Kathmandu")
    assert hands.page.locator(".side .me").inner_text().endswith("Asia/Kathmandu\nSign out")


def switch_keys(hands: Mouse, three: Workflow) -> None:
    hands.page.goto("/legend/")
    hands.press("Switch these keys off")
    hands.find("Switch these keys on").wait_for()
    wait_for(keys=False)
    assert hands.page.locator("html").get_attribute("data-keys") == "off"


SCRIPTS: dict[str, Callable[[Mouse, Workflow], None]] = {
    "settings.save": save, "settings.theme": change_theme, "settings.zone": take_zone,
    "settings.keys": switch_keys,
}  # fmt: skip
