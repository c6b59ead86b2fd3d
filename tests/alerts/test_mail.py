"""What people read: mails, and the services of apprise."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from harness_site import env
from ledger import clock, states
from ledger.alerts import messages, routing, rules
from ledger.alerts.rules import RuleDraft
from ledger.calls import Call, answer_call
from ledger.errors import InvalidInput
from ledger.models import AlertDelivery, AuditEntry, Outbox
from ledger.models.alerts import DEAD
from ledger.workflows import Workflow
from tests.alerts.kit import MailServer, Receiver, make_rule, send_due
from tests.factories import OPERATOR, ask, claim, make_in, submit

HOSTILE = "Pay\r\nBcc: all@evil.example\r\n\r\n<b>now</b>\u202e\x1b[2J " + "x" * 400


def test_a_mail_leads_to_its_question(flow: Workflow, mail_server: MailServer) -> None:
    make_rule("ann@here.example, bob@here.example", "approval_requested", channel="email")
    submit(flow, title="Ferry timetables", lane="default")
    asked = ask(claim(flow), flow, risk="high")
    routing.route_outbox()
    assert [outcome.error for _, outcome in send_due()] == [""]
    (mail,) = mail_server.mails
    assert mail["Subject"] == "[Longwatch] Approval asked for: Go on?"
    assert mail_server.recipients == ["ann@here.example", "bob@here.example"]
    text = mail.get_content()
    assert text.splitlines()[:2] == [
        "Approval asked for.",
        f"https://longwatch.example/approvals/{asked.id}/",
    ]
    assert "Risk: high" in text
    assert f"Task: Ferry timetables ({asked.task_id})" in text
    assert mail.get_content_type() == "text/plain"


@pytest.mark.parametrize("kind", ["approval_requested", "dead"])
def test_no_text_of_a_task_gets_out_of_its_place(
    mail_server: MailServer, db: None, kind: str
) -> None:
    rule = make_rule("ann@here.example", kind, channel="email")
    data = {"title": HOSTILE, "subject": HOSTILE, "error": {"type": "E", "message": HOSTILE}}
    Outbox.objects.create(at=clock.read(), kind=kind, data=data, only=rule, workflow="\n.\n")
    routing.route_outbox()
    AlertDelivery.objects.get()
    assert [outcome.error for _, outcome in send_due()] == [""]
    (mail,) = mail_server.mails
    assert mail["Bcc"] is None
    assert mail_server.recipients == ["ann@here.example"]
    assert len(mail["Subject"]) <= messages.MAX_SUBJECT + 5  # folding adds a space or two
    for text in (mail["Subject"], mail.get_content()):
        assert "Bcc: all@evil.example <b>now</b>[2J xxx" in " ".join(text.split())
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_what_is_told_holds_no_more_than_a_little(flow: Workflow) -> None:
    row = Outbox(kind="dead", at=clock.read(), data={})
    assert len(messages.write_message(row).make_body(1)) < 500
    task = make_in(states.DEAD, flow)
    stored = Outbox.objects.get(task=task.pk)
    assert set(stored.data) == {"reason", "error", "title", "step", "workflow_version"}
    assert set(stored.data["error"]) == {"type", "message"}


def test_a_mail_server_that_is_away_is_a_failure_with_a_name(
    settings: Any, db: None, mail_server: MailServer
) -> None:
    rule = make_rule("ann@here.example", channel="email")
    mail_server.__exit__()
    rules.send_test(rule.pk, OPERATOR)
    routing.route_outbox()
    ((_, outcome),) = send_due()
    assert "ConnectionRefusedError" in outcome.error
    assert AlertDelivery.objects.get().state == DEAD  # a test is tried once
    rule.refresh_from_db()
    assert rule.failures == 0


def test_a_service_of_apprise_is_told(db: None, receiver: Receiver) -> None:
    key = "topsecretkey"
    rule = make_rule(f"json://127.0.0.1:{receiver.port}/ok?:key={key}", channel="apprise")
    bad = make_rule(f"json://127.0.0.1:{receiver.port}/500?:key={key}", channel="apprise")
    for one in (rule, bad):
        rules.send_test(one.pk, OPERATOR)
    routing.route_outbox()
    outcomes = {told.pk: outcome.error for told, outcome in send_due()}
    assert outcomes[rule.pk] == ""
    assert "500" in outcomes[bad.pk]
    assert key not in outcomes[bad.pk]
    sent = receiver.at("ok?key=topsecretkey") or receiver.got
    assert "A test of the rule" in sent[0].json["message"]
    assert key not in str(list(AuditEntry.objects.values()))


def test_apprise_reaches_no_private_address_either(
    settings: Any, db: None, receiver: Receiver
) -> None:
    settings.LONGWATCH_ALERT_NETWORKS = []
    rule = make_rule(f"json://localhost:{receiver.port}/ok", channel="apprise")
    rules.send_test(rule.pk, OPERATOR)
    routing.route_outbox()
    ((_, outcome),) = send_due()
    assert outcome.error
    assert receiver.got == []


@pytest.mark.parametrize(
    ("channel", "target", "fields", "wrong"),
    [("email", "ann", {}, "target"), ("email", "a@b.example\nBcc: x@y.example", {}, "target"),
     ("email", "", {}, "target"), ("email", ",".join(["a@b.example"] * 21), {}, "target"),
     ("webhook", "ftp://a/", {}, "target"), ("webhook", "x" * 2001, {}, "target"),
     ("apprise", "nothing://x", {}, "target"), ("apprise", "syslog://", {}, "target"),
     ("apprise", "rsyslog://127.0.0.1:514", {}, "target"),
     ("fax", "1", {}, "channel"), ("email", "a@b.example", {"percent": 0}, "percent"),
     ("email", "a@b.example", {"minutes": 0}, "minutes"),
     ("email", "a@b.example", {"risk": "none"}, "risk"),
     ("email", "a@b.example", {"name": "a\nb"}, "name"),
     ("email", "a@b.example", {"lane": "x\0"}, "lane")],
)  # fmt: skip
def test_a_rule_that_can_not_work_is_not_made(
    db: None, channel: str, target: str, fields: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        make_rule(target, channel=channel, **fields)
    assert raised.value.field == wrong


@pytest.mark.parametrize(
    ("url", "options"),
    [("smtp://ann:p%40ss@mail.example:2525?tls=1",
      {"host": "mail.example", "port": 2525, "username": "ann", "password": "p@ss",
       "use_tls": True, "use_ssl": False}),
     ("smtps://mail.example", {"port": 465, "use_ssl": True, "use_tls": False}),
     ("smtp://mail.example", {"port": 25, "use_ssl": False, "use_tls": False})],
)  # fmt: skip
def test_the_mail_server_is_one_address(url: str, options: dict[str, Any]) -> None:
    assert options.items() <= env.parse_email(url)["OPTIONS"].items()


def test_without_a_mail_server_mails_go_to_the_log() -> None:
    assert "console" in env.parse_email("")["BACKEND"]
    with pytest.raises(ImproperlyConfigured, match="LONGWATCH_EMAIL_URL") as raised:
        env.parse_email("http://ann:hunter2@x")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("lane", ["", "day"])
def test_who_is_limited_to_lanes_is_told_of_these_alone(db: None, lane: str) -> None:
    own = make_rule("a@b.example", channel="email", lane="night")
    with answer_call(Call(lanes=frozenset({"night"}))):
        with pytest.raises(InvalidInput, match="lane: takes one of: night"):
            make_rule("a@b.example", channel="email", lane=lane)
        draft = RuleDraft("n", ["dead"], "email", "a@b.example", lane=lane)
        with pytest.raises(InvalidInput, match="lane: takes"):
            rules.edit_rule(own.pk, draft, OPERATOR)
        make_rule("a@b.example", channel="email", lane="night")
    own.refresh_from_db()
    assert own.lane == "night"
