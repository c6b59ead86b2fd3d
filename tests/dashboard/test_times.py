"""Times on every surface: in the person's zone, by one tag, right when the clocks change."""

from __future__ import annotations

import csv
import datetime as dt
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client

from dashboard import axis, charts, times
from dashboard.preferences import Preferences, using
from dashboard.templatetags import longwatch, task
from ledger import clock
from ledger.models import AuditEntry
from ledger.workflows import Workflow
from tests.conftest import ROOT
from tests.dashboard.test_every_page import list_pages

BERLIN, KATHMANDU, ST_JOHNS = "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"


def at(text: str) -> dt.datetime:
    """A moment in UTC."""
    return dt.datetime.fromisoformat(f"{text}+00:00")


@pytest.mark.parametrize(
    ("zone", "moment", "exact", "iso"),
    [
        ("", "2026-11-30T14:37:55", "Mon 30 Nov 2026, 14:37:55 UTC", "2026-11-30T14:37:55+00:00"),
        # The hour that is left out, and the one that comes twice.
        (BERLIN, "2026-03-29T00:59:59", "Sun 29 Mar 2026, 01:59:59 Europe/Berlin (UTC+01:00)",
         "2026-03-29T01:59:59+01:00"),
        (BERLIN, "2026-03-29T01:00:00", "Sun 29 Mar 2026, 03:00:00 Europe/Berlin (UTC+02:00)",
         "2026-03-29T03:00:00+02:00"),
        (BERLIN, "2026-10-25T00:30:00", "Sun 25 Oct 2026, 02:30:00 Europe/Berlin (UTC+02:00)",
         "2026-10-25T02:30:00+02:00"),
        (BERLIN, "2026-10-25T01:30:00", "Sun 25 Oct 2026, 02:30:00 Europe/Berlin (UTC+01:00)",
         "2026-10-25T02:30:00+01:00"),
        (KATHMANDU, "2026-11-30T18:30:00", "Tue 1 Dec 2026, 00:15:00 Asia/Kathmandu (UTC+05:45)",
         "2026-12-01T00:15:00+05:45"),
        (ST_JOHNS, "2026-07-01T02:00:00", "Tue 30 Jun 2026, 23:30:00 America/St_Johns (UTC-02:30)",
         "2026-06-30T23:30:00-02:30"),
        ("Europe/Atlantis", "2026-11-30T14:37:55", "Mon 30 Nov 2026, 14:37:55 UTC",
         "2026-11-30T14:37:55+00:00"),
    ],
)  # fmt: skip
def test_a_moment_is_exact_in_its_zone(zone: str, moment: str, exact: str, iso: str) -> None:
    with using(Preferences(zone=zone)):
        assert times.write_exact(at(moment)) == exact
        assert times.write_iso(at(moment)) == iso
        assert times.read_typed(iso) == at(moment)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("2026-11-30T14:37:55", "15:37:55"),
        ("2026-11-29T23:30:00", "00:30:00"),  # today in Berlin, yesterday in UTC
        ("2026-11-29T22:30:00", "Sun 23:30:00"),
        ("2026-11-24T12:00:00", "Tue 13:00:00"),
        ("2026-11-23T12:00:00", "23 Nov, 13:00:00"),
        ("2025-11-30T12:00:00", "30 Nov 2025, 13:00:00"),
        ("2026-12-02T12:00:00", "2 Dec, 13:00:00"),
    ],
)
def test_near_days_have_names_and_only_another_year_is_named(moment: str, text: str) -> None:
    with using(Preferences(zone=BERLIN)):
        assert times.write_moment(at(moment), at("2026-11-30T15:00:00")) == text


def test_twelve_hours_have_two_halves() -> None:
    with using(Preferences(hours=12)):
        shown = [times.write_clock(at(f"2026-11-30T{hour}:05:09"), seconds=hour != "13")
                 for hour in ("00", "11", "12", "13", "23")]  # fmt: skip
    assert shown == ["12:05:09 am", "11:05:09 am", "12:05:09 pm", "1:05 pm", "11:05:09 pm"]


@pytest.mark.parametrize(
    ("zone", "typed", "moment"),
    [
        (BERLIN, "2026-06-01T12:00", "2026-06-01T10:00:00"),
        (BERLIN, "2026-03-29T02:30", "2026-03-29T01:30:00"),  # left out: half an hour after it
        (BERLIN, "2026-10-25T02:30", "2026-10-25T00:30:00"),  # twice: the first
        (KATHMANDU, "2026-06-01T12:00", "2026-06-01T06:15:00"),
        (KATHMANDU, "2026-06-01T12:00+02:00", "2026-06-01T10:00:00"),
        ("", "2026-06-01T12:00", "2026-06-01T12:00:00"),
    ],
)
def test_what_is_typed_is_in_the_persons_zone(zone: str, typed: str, moment: str) -> None:
    with using(Preferences(zone=zone)):
        assert times.read_typed(typed) == at(moment)


@pytest.mark.parametrize(
    ("value", "text"),
    [(-5.0, "0 ms"), (0.84, "840 ms"), (9.94, "9.9 s"), (12.4, "12 s"), (65.0, "1 m 05 s"),
     (12_480.0, "3 h 28 m"), (90_000.0, "1 d 1 h"), (dt.timedelta(seconds=-1), "0 ms")],
)  # fmt: skip
def test_a_duration_has_two_units_at_most_and_is_never_negative(value: Any, text: str) -> None:
    assert longwatch.duration(value) == text


def test_what_was_just_written_is_never_in_the_future() -> None:
    now = longwatch.read_server_time()
    assert "0 s ago" in longwatch.ago(now + dt.timedelta(seconds=0.9))
    assert ">0 s<" in longwatch.elapsed(now + dt.timedelta(seconds=0.9), None)
    assert 'data-time="for"' in longwatch.elapsed(now, None)
    assert longwatch.elapsed(now, now - dt.timedelta(1)) == "0 ms"
    assert "expired, checking" in task.countdown(now - dt.timedelta(seconds=1))


@pytest.mark.parametrize(
    ("zone", "start", "step", "shown"),
    [
        (BERLIN, "2026-03-28T20:00:00", 21_600, ["00:00", "06:00", "12:00", "18:00"]),
        (BERLIN, "2026-10-24T20:00:00", 21_600, ["00:00", "06:00", "12:00", "18:00"]),
        (BERLIN, "2026-10-25T00:30:00", 3_600, ["03:00", "04:00", "05:00", "06:00"]),
        (KATHMANDU, "2026-06-01T00:00:00", 3_600, ["06:00", "07:00", "08:00", "09:00"]),
        (ST_JOHNS, "2026-06-01T00:00:00", 1_800, ["21:30", "22:00", "22:30", "23:00"]),
        ("", "2026-06-01T00:10:00", 600, ["00:10", "00:20", "00:30", "00:40"]),
    ],
)
def test_an_axis_has_its_ticks_at_round_times_of_the_wall(
    zone: str, start: str, step: int, shown: list[str]
) -> None:
    begin = at(start).timestamp()
    with using(Preferences(zone=zone)):
        found = axis.count_round_times(begin, step)
        ticks = [next(found) for _ in shown]
        assert [axis.say_tick(one, step, dated=False) for one in ticks] == shown
    assert ticks == sorted(ticks)
    assert ticks[0] >= begin


@pytest.mark.parametrize("zone", [BERLIN, KATHMANDU, ST_JOHNS])
@pytest.mark.parametrize("name", ["1h", "24h", "7d"])
def test_a_chart_names_the_hours_and_days_of_the_zone(zone: str, name: str) -> None:
    with using(Preferences(zone=zone)):
        for now in ("2026-03-29T12:20:00", "2026-10-25T12:20:00", "2026-06-01T03:10:00"):
            span = charts.make_span(name, at(now))
            ticks = span.list_ticks()
            assert 3 <= len(ticks) <= 9
            assert len({text for _, text in ticks}) == len(ticks)
            for x, text in ticks:  # each stands in the bucket that holds that time
                bucket = round(x * span.count / 100 - 0.5)
                last = span.now.timestamp() // span.size * span.size
                begin = last - (span.count - 1 - bucket) * span.size
                inside = [dt.datetime.fromtimestamp(begin + one, dt.UTC)
                          for one in range(0, span.size, 60)]  # fmt: skip
                assert text in {span.say_tick(one) for one in inside}


class Loose(HTMLParser):
    """The text of a page that stands in no <time>, and in nothing that is shown as it is stored."""

    KEPT = frozenset({"time", "pre", "script", "text", "title", "option", "code", "kbd"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One further in."""
        if tag in self.KEPT:
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """One further out."""
        if tag in self.inside:
            self.inside.remove(tag)

    def handle_data(self, data: str) -> None:
        """Note what is loose."""
        if not self.inside:
            self.text.append(data)


CLOCK = re.compile(r"\d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT|\d{4}-\d\d-\d\d \d\d:|\+00:00")


def test_no_page_prints_a_time_without_the_tag(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    """And none in another zone than the person's."""
    admin = sign_in("admin")
    admin.post("/settings/", {"zone": KATHMANDU})
    found = {}
    for paths in list_pages(three).values():
        for path in paths:
            page = admin.get(path).content.decode()
            exact = f"{KATHMANDU} (UTC+05:45)"  # values of the audit log are exact
            texts = [text for text in Loose(page).text if exact not in text]
            loose = [text for text in texts if CLOCK.search(text)]
            zones = {one[-6:] for one in re.findall(r'<time datetime="([^"]+)"', page)}
            if loose or zones - {"+05:45"}:
                found[path] = (loose, zones)
    assert found == {}


def test_no_source_writes_a_time_by_itself() -> None:
    """`times.py` alone knows the zone; a template prints what the tags make of a moment."""
    own = re.compile(r"strftime|:%[HYaI]|\.hour\b|fromtimestamp\([^,)]*\)|datetime\.now\(\)")
    wrong = [
        path.name
        for path in (ROOT / "dashboard").rglob("*.py")
        if path.name != "times.py" and own.search(path.read_text().replace("local.hour", ""))
    ]
    printed = re.compile(r"\{\{[^}]*\|(date|time|timesince|timeuntil|localtime)\b|\{% now |<time\b")
    wrong += [
        path.name
        for path in (ROOT / "templates" / "dashboard").glob("*.html")
        if printed.search(path.read_text())
    ]
    assert wrong == []


def test_the_audit_log_is_narrowed_and_exported_in_the_persons_zone(
    sign_in: Callable[..., Client],
) -> None:
    admin = sign_in("admin")
    admin.post("/settings/", {"zone": KATHMANDU})
    AuditEntry.objects.all().delete()
    for hour in (5, 7):
        AuditEntry.objects.create(at=at(f"2026-06-01T{hour:02}:00:00"), actor="cli:a",
                                  action="did", target=str(hour))  # fmt: skip
    page = admin.get("/audit/", {"since": "2026-06-01T12:00", "action": "did"})  # 06:15 UTC
    assert [row["target"] for row in page.context["rows"]] == ["7"]
    assert "From (Asia/Kathmandu)" in page.content.decode()
    sent = admin.get("/audit/export/csv/", {"action": "did"}).getvalue().decode()
    rows = list(csv.DictReader(sent.splitlines()))
    assert [(row["at"], row["at_local"], row["zone"]) for row in rows] == [
        ("2026-06-01T07:00:00+00:00", "2026-06-01T12:45:00+05:45", KATHMANDU),
        ("2026-06-01T05:00:00+00:00", "2026-06-01T10:45:00+05:45", KATHMANDU),
    ]
    listed = json.loads(admin.get("/audit/export/json/", {"action": "did"}).getvalue())
    assert [row["at_local"] for row in listed] == [row["at_local"] for row in rows]


def test_what_is_made_after_its_request_knows_no_zone(sign_in: Callable[..., Client]) -> None:
    """One person's zone never reaches the page of the next one on the same thread."""
    sign_in("operator", "ann").post("/settings/", {"zone": KATHMANDU})
    assert times.write_iso(clock.read()).endswith("+00:00")
    page = sign_in("operator", "ben").get("/approvals/").content.decode()
    assert "+05:45" not in page
