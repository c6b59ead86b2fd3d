"""What of a task somebody wants to see: in the address, so that it can be sent on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from dashboard.access import PageRequest
from dashboard.axis import OPEN_END

COMPACT, ATTEMPTS, EVENTS = "", "attempts", "events"
OUTPUT, INPUT, LOG, UNITS = "", "input", "log", "units"
TABS = {OUTPUT: "Output", INPUT: "Input", LOG: "Log", UNITS: "Units"}
"""What the panel shows of a unit."""

MODES = {COMPACT: "Compact", ATTEMPTS: "Attempts", EVENTS: "All events"}
"""How fine the timeline is: a row for each step, for each attempt, for each event."""

MAX_TEXT, MAX_LIST = 100, 2_000
_SPAN = re.compile(r"(\d{1,15})-(\d{0,15})", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """Everything that the page's own links keep.

    `zoom` is the part of the timeline's time that is drawn, in milliseconds since the epoch; `open`
    the step whose attempts are listed, and `skip` the rows before those shown. `failed`, `kind` and
    `find` narrow the timeline. `list` is the query of the list that the page was opened from.
    """

    step: str = ""
    unit: int = 0
    squeeze: bool = True
    mode: str = COMPACT
    open: str = ""
    skip: int = 0
    failed: bool = False
    kind: str = ""
    find: str = ""
    zoom: tuple[int, int] | None = None
    list: str = ""
    tab: str = OUTPUT

    @property
    def narrows(self) -> bool:
        """True when the timeline leaves something out."""
        return self.failed or bool(self.kind or self.find)

    def list_pairs(self, **changes: Any) -> dict[str, str]:
        """The fields of an address that asks for it, with `changes`: what is usual has none."""
        wish = dataclasses.replace(self, **changes)
        named = {
            "unit": str(wish.unit or ""),
            "step": "" if wish.unit else wish.step,
            "squeeze": "" if wish.squeeze else "0",
            "view": wish.mode,
            "open": wish.open,
            "skip": str(wish.skip or ""),
            "failed": "1" if wish.failed else "",
            "kind": wish.kind,
            "find": wish.find,
            "zoom": _write_zoom(*wish.zoom) if wish.zoom else "",
            "list": wish.list,
            "tab": wish.tab,
        }
        return {name: value for name, value in named.items() if value}

    def write(self, **changes: Any) -> str:
        """The query of that address; empty for what is usual."""
        query = urlencode(self.list_pairs(**changes))
        return f"?{query}" if query else ""

    def go_on(self) -> Wish:
        """What is wanted of the next task, too: how it is shown, and the list."""
        return Wish(
            squeeze=self.squeeze, mode=self.mode, failed=self.failed, list=self.list, tab=self.tab
        )


def read_wish(request: PageRequest) -> Wish:
    """From the address; of an action from the address of the page that it was taken on."""
    given: Mapping[str, str] = request.GET.dict()
    if request.method == "POST" and (where := request.htmx.current_url):
        given = {name: values[-1] for name, values in parse_qs(urlsplit(where).query).items()}
    unit = _read_number(given.get("unit", ""))
    mode = given.get("view", "")
    span = _SPAN.fullmatch(given.get("zoom", ""))
    zoom = (int(span[1]), int(span[2] or OPEN_END)) if span else None
    return Wish(
        "" if unit else _read_text(given, "step"), unit, given.get("squeeze") != "0",
        mode if mode in MODES else COMPACT, _read_text(given, "open"),
        _read_number(given.get("skip", "")), given.get("failed") == "1",
        _read_text(given, "kind"), _read_text(given, "find").strip(), zoom,
        _read_text(given, "list", MAX_LIST), tab if (tab := given.get("tab", "")) in TABS else "",
    )  # fmt: skip


def _write_zoom(start: int, end: int) -> str:
    return f"{start}-" if end >= OPEN_END else f"{start}-{end}"


def _read_text(given: Mapping[str, str], name: str, size: int = MAX_TEXT) -> str:
    return given.get(name, "").replace("\0", "")[:size]


def _read_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
