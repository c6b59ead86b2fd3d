"""The page of alerts: rules made and tested, what was given up brought back, keys kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from ledger import states
from ledger.alerts import routing, rules
from ledger.models import AlertDelivery, AlertRule, AuditEntry, Reach
from ledger.models.alerts import DEAD, SENT
from ledger.workflows import Workflow
from tests.alerts.kit import LOOPBACK, Receiver, make_rule, send_due
from tests.factories import OPERATOR, make_in

PAGE = "/alerts/"
RULE = {
    "name": "On call", "kinds": ["dead", "stalled"], "channel": "webhook", "risk": "",
    "target": "https://hooks.example/services/T0/KEY", "percent": "80", "minutes": "15",
    "enabled": "on",
}  # fmt: skip
SECRET = re.compile(r"whsec_[\w+/=]+")


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.LONGWATCH_ALERT_NETWORKS = [LOOPBACK]
    with Receiver() as found:
        yield found


def read_page(client: Client, path: str = PAGE) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def test_a_secret_is_shown_once_to_who_made_the_rule(sign_in: Callable[..., Client]) -> None:
    admin = sign_in("admin")
    shown = admin.post("/alerts/new/", RULE).content.decode()
    (secret,) = SECRET.findall(shown)
    rule = AlertRule.objects.get()
    assert rule.secret == secret
    place = reverse("dashboard:alert", args=[rule.pk])
    (new,) = SECRET.findall(admin.post(place, {"do": "new-secret"}).content.decode())
    admin.post(place, RULE | {"name": "On duty"})
    for client in (admin, sign_in("operator")):
        page = read_page(client)
        assert "On duty" in page
        assert "https://hooks.example/…" in page
        assert "KEY" not in page
        assert not SECRET.search(page)
    kept = str(list(AuditEntry.objects.values())) + read_page(admin, place)
    assert secret not in kept
    assert new not in kept
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"make_alert_rule", "edit_alert_rule", "rotate_alert_secret"} <= actions


@pytest.mark.parametrize(
    ("change", "said"),
    [({"target": "ftp://x"}, "http://"), ({"kinds": []}, "required"), ({"name": ""}, "required"),
     ({"channel": "email", "target": "ann"}, "is no e-mail address"),
     ({"percent": "0"}, "takes 1 to 100"), ({"target": ""}, "takes 1 to 2000")],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_field_and_what_was_typed_stays(
    sign_in: Callable[..., Client], change: dict[str, Any], said: str
) -> None:
    response = sign_in("admin").post("/alerts/new/", RULE | {"lane": "nightly"} | change)
    text = response.content.decode()
    assert response.status_code == 422
    assert said in text
    assert 'value="nightly"' in text
    assert not AlertRule.objects.exists()


def test_a_test_goes_the_real_way_and_its_outcome_is_shown(
    sign_in: Callable[..., Client], receiver: Receiver
) -> None:
    operator = sign_in("operator")
    for path, said in (("ok", "was sent and taken"), ("500", "failed: answered 500")):
        rule = make_rule(receiver.url(path), name=f"to {path}")
        response = operator.post(reverse("dashboard:alert-act", args=[rule.pk, "test"]))
        place = response["Location"]
        assert "waits for the sender" in read_page(operator, place)
        routing.route_outbox()
        assert "is being sent" in read_page(operator, place)
        send_due()
        assert said in read_page(operator, place)
    assert [one.json["type"] for one in receiver.got] == ["test", "test"]


def test_what_was_given_up_is_sent_again_one_or_all(
    sign_in: Callable[..., Client], receiver: Receiver, three: Workflow
) -> None:
    rule = make_rule(receiver.url("ok"))
    for _ in range(3):
        make_in(states.DEAD, three)
    routing.route_outbox()
    AlertDelivery.objects.update(state=DEAD, error="answered 500")
    operator = sign_in("operator")
    assert read_page(operator).count(">Send again<") == 3
    place = reverse("dashboard:alert-act", args=[rule.pk, "replay"])
    operator.post(place, {"number": 3})
    send_due()
    assert list(rule.deliveries.order_by("seq").values_list("state", flat=True)) == [
        DEAD, DEAD, SENT,
    ]  # fmt: skip
    operator.post(place)
    send_due()
    send_due()
    assert set(rule.deliveries.values_list("state", flat=True)) == {SENT}


def test_only_an_admin_sees_and_writes_a_rules_form(sign_in: Callable[..., Client]) -> None:
    rule = make_rule("slack://a/b/c", channel="apprise")
    place = reverse("dashboard:alert", args=[rule.pk])
    operator, admin = sign_in("operator"), sign_in("admin")
    for path in (place, "/alerts/new/"):
        assert operator.get(path).status_code == operator.post(path, RULE).status_code == 403
    assert sign_in("viewer").get(PAGE).status_code == 403
    assert "slack://a" not in read_page(admin, place)
    admin.post(place, RULE | {"channel": "apprise", "target": "", "name": "kept"})
    rule.refresh_from_db()
    assert (rule.name, rule.target) == ("kept", "slack://a/b/c")
    admin.post(place, {"do": "remove"})
    assert admin.get(place).status_code == 404
    assert "kept" not in read_page(admin)


def test_who_is_limited_to_lanes_sees_their_alerts_alone(sign_in: Callable[..., Client]) -> None:
    mine = make_rule("http://a/", name="of the day", lane="day")
    others = [make_rule("http://a/", name=f"not mine {lane}", lane=lane) for lane in ("night", "")]
    operator = sign_in("operator", "dora")
    Reach.objects.create(user=get_user_model().objects.get(username="dora"), lanes=["day"])
    for rule in (mine, *others):
        status = 303 if rule == mine else 404
        place = reverse("dashboard:alert-act", args=[rule.pk, "test"])
        assert operator.post(place).status_code == status
    for other in others:
        rules.send_test(other.pk, OPERATOR)
    routing.route_outbox()
    assert AlertDelivery.objects.count() == 3
    page = read_page(operator)
    assert "of the day" in page
    assert "not mine" not in page
