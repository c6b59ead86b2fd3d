"""watch and answer at a terminal: the result, tools by name, plain words, a reason for a no."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command

from ledger import registry
from ledger.models import Approval
from ledger.transitions import holder
from ledger.workflows import Workflow
from tests.commands.test_terminal import run
from tests.factories import ask, claim, complete, make_unit, make_workflow, submit

pytestmark = pytest.mark.both_databases


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        """True."""
        return True


@pytest.fixture
def three() -> Iterator[Workflow]:
    """A workflow of the steps a, b, c."""
    workflow = make_workflow("three", steps=2)
    with registry.registered(workflow):
        yield workflow


def put(flow: Workflow, body: str = "") -> Approval:
    """An open question."""
    submit(flow)
    return Approval.objects.get(pk=ask(claim(flow), flow, body=body).pk)


def test_watch_ends_with_the_result_and_names_the_tools(db: None, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    call = {"part_kind": "tool-call", "tool_name": "read_file", "args": {"path": "a"}}
    output = json.dumps({"transcript": {"messages": [{"parts": [call]}]}})
    unit = make_unit(held, three, output=output)
    holder.settle_unit(held, unit)
    complete(claim(three), three)
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("watch", str(task.pk), stdout=out)
    lines = out.getvalue().splitlines()
    assert ended.value.code == 0
    assert any("checkpoint  a:0" in line and "calls read_file" in line for line in lines)
    assert lines[-4:] == ["result: {", '  "done": true', "}", "completed"]


def test_answer_shows_markdown_as_plain_words(db: None, three: Workflow) -> None:
    asked = put(three, body="Send **all** of \\*it\\*.\n\n- first_one\n\x1b[2J")
    _, err = run("answer", str(asked.pk), "approve")
    assert "Send all of *it*." in err
    assert "first_one" in err
    assert ("\x1b" in err, "**" in err) == (False, False)


def test_a_no_at_a_terminal_takes_a_comment(
    db: None, three: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = put(three)
    monkeypatch.setattr(sys, "stdin", Terminal("\n \n\n"))
    with pytest.raises(CommandError, match="Nothing was answered"):
        run("answer", str(asked.pk), "reject")
    asked.refresh_from_db()
    assert asked.status == "open"
    monkeypatch.setattr(sys, "stdin", Terminal("\ncite the source\n"))
    run("answer", str(asked.pk), "reject")
    asked.refresh_from_db()
    assert (asked.status, asked.comment) == ("rejected", "cite the source")
