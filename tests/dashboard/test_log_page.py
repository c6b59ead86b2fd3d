"""The page of a log: which attempts have one, and of one the lines that are looked for."""

from __future__ import annotations

import datetime as dt
import html
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard import loglines
from ledger.models import Task
from ledger.transitions import holder
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import claim, make_unit, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

LOG = """\
08:00:00 DEBUG cold
08:00:01 ERROR it broke
    Traceback of <b>Ferry</b>
… 1,234 bytes left out …
08:00:02 OUT 08:00:00 ERROR is what it printed
08:00:03 WARNING low
08:00:04 INFO over"""


def read_page(client: Client, task: Task, headers: Any = None, **query: Any) -> str:
    response = client.get(reverse("dashboard:log", args=[task.pk]), query, headers=headers or {})
    assert response.status_code == 200
    return response.content.decode()


def list_shown(text: str) -> str:
    """What stands in the box of the log."""
    found = re.search(r'<pre class="code log".*?>(.*?)</pre>', text, re.DOTALL)
    return re.sub("<[^>]+>", "", found[1]) if found else ""


def run_units(three: Workflow) -> Task:
    """A unit that logged, one that was silent, an attempt that failed, and one that runs."""
    task = submit(three)
    for log in (LOG, ""):
        held = claim(three)
        holder.settle_unit(held, make_unit(held, three, log_tail=log))
    failed = holder.Attempt({"type": "X", "message": "m"}, "08:00:09 INFO its end")
    holder.record_failure(claim(three), failed, retries=3, backoff=0)
    return task


@pytest.mark.parametrize(
    ("level", "words", "shown"),
    [
        ("", "", "01234"),
        ("info", "", "1234"),
        ("warning", "", "13"),
        ("error", "", "1"),
        ("printed", "", "2"),
        ("", "ferry", "1"),
        ("warning", "over", ""),
    ],
)
def test_lines_are_chosen_whole_and_what_is_left_out_is_told(
    operator: Client, three: Workflow, level: str, words: str, shown: str
) -> None:
    task = run_units(three)
    text = read_page(operator, task, fence=1, level=level, q=words)
    href = re.search(r'href="([^"]+)" download=', text)
    assert href
    whole = operator.get(html.unescape(href[1])).content.decode()
    assert "Traceback of <b>Ferry</b>" in whole  # whatever is chosen
    assert "".join(re.findall(r"^08:00:0(\d)", list_shown(text), re.MULTILINE)) == shown
    assert ("Traceback of &lt;b&gt;Ferry" in list_shown(text)) == ("1" in shown)
    assert "… 1,234 bytes left out …" in list_shown(text)
    if level or words:
        assert f"{len(shown) + 1} of 6 lines match" in " ".join(text.split())


def test_the_page_says_which_attempts_have_a_log(operator: Client, three: Workflow) -> None:
    task = run_units(three)
    text = " ".join(read_page(operator, task, level="error").split())
    listed = text[text.index("unitlinks logs") : text.index("</nav>", text.index("unitlinks logs"))]
    one = r'fence=\d&amp;level=error"( class="dim")?>([^<]+)<span class="num">([^<]+)'
    assert re.findall(one, listed) == [
        ("", "c, turn 0", "failed, fence 3"),
        (' class="dim"', "b, turn 0", "no log, fence 2"),
        ("", "a, turn 0", "fence 1"),
    ]
    assert text.index("unitlinks logs") < text.index('id="task-log"')
    assert "It logged nothing." in read_page(operator, task, fence=2)


def test_what_is_looked_for_is_followed(operator: Client, three: Workflow) -> None:
    task = run_units(three)
    text = read_page(operator, task, level="error", q='a "b&c')
    poll = 'log/?units=1&amp;level=error&amp;q=a+%22b%26c" hx-trigger="every 2s"'
    assert poll in text
    part = read_page(operator, task, PART, units=1, level="error")
    assert part.lstrip().startswith('<div class="logall"')
    assert "<form" not in part
    assert "unitlinks" not in read_page(operator, task, PART)
    path = reverse("dashboard:log", args=[task.pk])
    assert operator.get(path, {"level": "x"}).status_code == 422
    assert operator.get(path, {"fence": 99}).status_code == 404


def test_colour_changes_no_character() -> None:
    ended = dt.datetime(2026, 11, 30, 23, tzinfo=dt.UTC)
    coloured = loglines.colour_lines(LOG + "\n\x08 not a line of ours\u202e", ended)
    assert re.findall("<b class=.(.*?).>(.*?)</b>", coloured) == [
        ("badt", "ERROR"),
        ("warnt", "WARNING"),
    ]
    bare = re.sub("</?b.*?>", "", coloured)
    assert bare == LOG.replace("<b>", "&lt;b&gt;").replace("</b>", "&lt;/b&gt;") + (
        "\n\x08 not a line of ours[U+202E]"
    )
