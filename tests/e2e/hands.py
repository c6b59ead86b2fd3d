"""Three ways to use a page: by mouse, by keyboard alone, and without JavaScript."""

from __future__ import annotations

import dataclasses
from typing import Any

MAX_TABS = 200


@dataclasses.dataclass(frozen=True)
class Mouse:
    """Clicks, and types where it clicked. Without JavaScript the same hands meet plain pages."""

    page: Any
    script: bool = True

    def press(self, name: Any, role: str = "button") -> None:
        """A button or a link, by what a screen reader calls it."""
        self.use(self.find(name, role))

    def find(self, name: Any, role: str = "button") -> Any:
        """The first such element that is visible."""
        exact = {"exact": True} if isinstance(name, str) else {}
        return self.page.get_by_role(role, name=name, **exact).first

    def use(self, element: Any) -> None:
        """Click it."""
        element.click()

    def find_field(self, label: str) -> Any:
        """The first field to type in whose label has this text."""
        return self.page.locator("input, textarea").and_(self.page.get_by_label(label)).first

    def write(self, label: str, text: str) -> None:
        """Replace the text of a field."""
        self.find_field(label).fill(text)

    def tick(self, label: str) -> None:
        """Check a box."""
        self.page.get_by_label(label, exact=True).check()


class Keyboard(Mouse):
    """Tab, Enter, Space and letters; no mouse and no script that puts the focus anywhere."""

    def use(self, element: Any) -> None:
        """Enter on it."""
        self.reach(element)
        self.page.keyboard.press("Enter")

    def write(self, label: str, text: str) -> None:
        """Type over what is there."""
        self.reach(self.find_field(label))
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def tick(self, label: str) -> None:
        """Space on it."""
        self.reach(self.page.get_by_label(label, exact=True))
        self.page.keyboard.press("Space")

    def reach(self, element: Any) -> None:
        """Tab until the focus is on it, and see that the focus shows."""
        element.wait_for()
        for _ in range(MAX_TABS):
            if element.evaluate("node => node === document.activeElement"):
                shown = element.evaluate("node => getComputedStyle(node).outlineStyle")
                within = element.evaluate("node => node.matches('.find input')")
                assert within or shown != "none", "nobody sees where the focus is"
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"no Tab reaches {element}")


WAYS = ("mouse", "keyboard", "plain")
"""`plain` is a browser with JavaScript switched off: real GETs and POSTs, whole pages."""


def make_hands(way: str, page: Any) -> Mouse:
    """The hands for one of WAYS."""
    return {
        "mouse": lambda: Mouse(page),
        "keyboard": lambda: Keyboard(page),
        "plain": lambda: Mouse(page, script=False),
    }[way]()
