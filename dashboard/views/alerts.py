"""Alerts: the rules, what became of what was sent, and what was given up."""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import UUID

from django.core.mail import mailers
from django.http import Http404, HttpResponse, HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.access import PageRequest, allow
from dashboard.alerts import RuleForm, show_delivery, show_rule
from dashboard.htmx import find_unchanged, render_page
from dashboard.views.workflows import SeeOther
from ledger.access import ADMIN, OPERATE
from ledger.alerts import rules
from ledger.errors import InvalidInput
from ledger.models import AlertRule
from ledger.models.alerts import DEAD, SENT

SHOWN = 50


@require_safe
@allow(OPERATE)
def show_alerts(request: PageRequest) -> HttpResponseBase:
    """Rules and deliveries; for a poll the part that changes."""
    given_up = rules.list_deliveries(DEAD, SHOWN)
    latest = rules.list_deliveries(limit=SHOWN)
    context: dict[str, Any] = {
        "section": "alerts",
        "rules": [show_rule(rule) for rule in rules.list_rules()],
        "given_up": [show_delivery(row) for row in given_up],
        "latest": [show_delivery(row) for row in latest if row.state != DEAD],
        "tested": find_test(request.GET.get("test", ""), latest),
        "test": request.GET.get("test", ""),
        "may_edit": ADMIN in request.scopes,
        "mail_is_logged": "console" in str(mailers.settings.get("default", {}).get("BACKEND")),
    }
    tag = make_tag(context)
    return find_unchanged(request, tag) or render_page(
        request, "dashboard/alerts.html", context | {"tag": tag}, part="alerts", tag=tag
    )


def find_test(test: str, latest: list[Any]) -> dict[str, Any] | None:
    """What is known of the test that was asked for last."""
    if not test:
        return None
    row = next((row for row in latest if str(row.outbox_id) == test), None)
    if row is None:
        return {"css": "", "text": "The test waits for the sender, which runs beside the workers."}
    if row.state == SENT:
        return {"css": "is-ok", "text": f"The test of {row.rule.name} was sent and taken."}
    if row.state == DEAD:
        return {"css": "is-fail", "text": f"The test of {row.rule.name} failed: {row.error}"}
    return {"css": "", "text": f"The test of {row.rule.name} is being sent."}


def make_tag(context: dict[str, Any]) -> str:
    """Names what the page shows."""
    seen = [
        [(one["row"].pk, one["row"].updated_at, one["look"], one["row"].dead, one["row"].waiting)
         for one in context["rules"]],
        [(one["row"].pk, one["look"], one["row"].attempts, one["row"].error)
         for one in (*context["given_up"], *context["latest"])],
        context["tested"],
    ]  # fmt: skip
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


@require_http_methods(["GET", "HEAD", "POST"])
@allow(ADMIN)
def make_alert(request: PageRequest) -> HttpResponseBase:
    """The form of a new rule; a webhook's secret is shown once it is made."""
    if request.method != "POST":
        return render_form(request, RuleForm())
    form = RuleForm(request.POST)
    if not form.is_valid():
        return render_form(request, form, 422)
    try:
        rule, secret = rules.make_rule(form.make_draft(), request.actor)
    except InvalidInput as error:
        return refuse_form(request, form, error)
    return show_secret(request, rule, secret)


@require_http_methods(["GET", "HEAD", "POST"])
@allow(ADMIN)
def edit_alert(request: PageRequest, rule_id: UUID) -> HttpResponseBase:
    """A rule's form; besides saving it takes `do`: new-secret or remove."""
    rule = rules.see_rules().filter(pk=rule_id).first()
    if rule is None:
        raise Http404("no such rule")
    if request.method != "POST":
        return render_form(request, RuleForm(rule=rule))
    if request.POST.get("do") == "remove":
        rules.remove_rule(rule.pk, request.actor)
        return SeeOther(reverse("dashboard:alerts"))
    try:
        if request.POST.get("do") == "new-secret":
            return show_secret(request, rule, rules.rotate_secret(rule.pk, request.actor))
        form = RuleForm(request.POST, rule=rule)
        if not form.is_valid():
            return render_form(request, form, 422)
        secret = rules.edit_rule(rule.pk, form.make_draft(), request.actor)
    except InvalidInput as error:
        return refuse_form(request, RuleForm(request.POST, rule=rule), error)
    return show_secret(request, rule, secret)


def show_secret(request: PageRequest, rule: AlertRule, secret: str) -> HttpResponseBase:
    """The one page that shows it; without one, the list."""
    if not secret:
        return SeeOther(reverse("dashboard:alerts"))
    context = {"section": "alerts", "rule": rule, "secret": secret}
    return render_page(request, "dashboard/alert_secret.html", context)


def refuse_form(request: PageRequest, form: RuleForm, error: InvalidInput) -> HttpResponse:
    """What the ledger refused, at the field that it names."""
    form.is_valid()
    form.add_error(error.field if error.field in form.fields else None, error.reason)
    return render_form(request, form, 422)


def render_form(request: PageRequest, form: RuleForm, status: int = 200) -> HttpResponse:
    """The page of one rule, new or not."""
    context = {"section": "alerts", "form": form, "rule": form.rule}
    return render_page(request, "dashboard/alert.html", context, status=status)


@require_POST
@allow(OPERATE)
def act_on_alert(request: PageRequest, rule_id: UUID, name: str) -> HttpResponseBase:
    """`test` a rule, or `replay` what was given up: all of it, or the one of `number`."""
    path = reverse("dashboard:alerts")
    if name == "test":
        return SeeOther(f"{path}?test={rules.send_test(rule_id, request.actor)}")
    if name != "replay":
        raise Http404("no such action")
    chosen = request.POST.get("number", "")
    if chosen and not chosen.isdecimal():
        raise Http404("no such delivery")
    rules.replay_dead(rule_id, request.actor, int(chosen[:18]) if chosen else None)
    return SeeOther(path)
