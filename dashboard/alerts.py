"""The form of an alert rule, and how deliveries are shown."""

from __future__ import annotations

from typing import Any

from django import forms

from dashboard import words
from ledger.alerts import rules
from ledger.alerts.kinds import APPRISE, CHANNELS, KINDS, RISKS
from ledger.alerts.messages import write_message
from ledger.alerts.rules import RuleDraft
from ledger.models import AlertDelivery, AlertRule
from ledger.models.alerts import DEAD, PENDING, SENT

LOOKS = {
    PENDING: words.Look("Waits", "sched", "is-idle"),
    SENT: words.Look("Sent", "ok", "is-ok"),
    DEAD: words.Look("Given up", "dead", "is-dead"),
}
AGAIN = words.Look("Tried, waits", "stall", "is-stall")
OFF = words.Look("Off", "pause", "is-idle")
FAILING = words.Look("Failing", "fail", "is-fail")
WORKS = words.Look("On", "ok", "is-ok")

HELP = {
    "name": "What people see in lists.",
    "target": "E-mail: addresses, comma between. Webhook: its https:// address. Apprise: a "
    "service's address, such as slack:// or tgram://.",
    "workflow": "Only of this workflow.",
    "lane": "Only in this lane.",
    "tag": "Only of tasks with this tag.",
    "risk": "Of approvals only those of at least this risk.",
    "percent": "For “Most of a limit used”: units, tokens or money.",
    "minutes": "For “Queue waits too long”.",
}


class RuleForm(forms.Form):
    """A rule as a person writes it; what can't work is refused by the ledger, at its field."""

    name = forms.CharField(label="Name", max_length=100)
    kinds = forms.MultipleChoiceField(label="Tell of", choices=list(KINDS.items()))
    channel = forms.ChoiceField(label="Send by", choices=list(CHANNELS.items()))
    target = forms.CharField(label="To", max_length=2000, required=False)
    workflow = forms.CharField(label="Workflow", max_length=100, required=False)
    lane = forms.CharField(label="Lane", max_length=100, required=False)
    tag = forms.CharField(label="Tag", max_length=100, required=False)
    risk = forms.ChoiceField(
        label="Risk", required=False, choices=[("", "Any"), *((one, one) for one in RISKS)]
    )
    percent = forms.IntegerField(label="Percent of a limit", initial=80)
    minutes = forms.IntegerField(label="Minutes in the queue", initial=15)
    enabled = forms.BooleanField(label="On", required=False, initial=True)

    def __init__(self, *args: Any, rule: AlertRule | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rule = rule
        if rule is not None:
            self.initial = {name: getattr(rule, name) for name in self.fields}
            if rule.channel == APPRISE:
                self.initial["target"] = ""  # it is a key

    def list_simple(self) -> list[tuple[Any, str, str]]:
        """(field, kind, help) of the fields that are asked for one below the other."""
        asked = {"channel": "choice", "risk": "choice", "percent": "integer", "minutes": "integer"}
        names = ("name", "channel", "target")
        return [(self[name], asked.get(name, "text"), self._explain(name)) for name in names]

    def list_filters(self) -> list[tuple[Any, str, str]]:
        """The same of the filters and numbers, which have a default."""
        asked = {"risk": "choice", "percent": "integer", "minutes": "integer"}
        names = ("workflow", "lane", "tag", "risk", "percent", "minutes")
        return [(self[name], asked.get(name, "text"), self._explain(name)) for name in names]

    def _explain(self, name: str) -> str:
        if name == "target" and self.rule is not None and self.rule.channel == APPRISE:
            return f"Empty keeps {rules.hide_target(self.rule)}"
        return HELP.get(name, "")

    def make_draft(self) -> RuleDraft:
        """What the ledger takes; the form must be valid."""
        given = dict(self.cleaned_data)
        if not given["target"] and self.rule and self.rule.channel == given["channel"]:
            given["target"] = self.rule.target
        return RuleDraft(**given)


def show_rule(rule: Any) -> dict[str, Any]:
    """A rule for the list."""
    filters = [
        f"{label} {value}"
        for label, value in (
            ("workflow", rule.workflow), ("lane", rule.lane), ("tag", rule.tag),
            ("risk from", rule.risk),
        )
        if value
    ]  # fmt: skip
    return {
        "row": rule,
        "look": OFF if not rule.enabled else FAILING if rule.failures else WORKS,
        "told": [KINDS.get(kind, kind) for kind in rule.kinds],
        "channel": CHANNELS.get(rule.channel, rule.channel),
        "target": rules.hide_target(rule),
        "filters": filters,
    }


def show_delivery(row: AlertDelivery) -> dict[str, Any]:
    """A delivery for the list."""
    message = write_message(row.outbox)
    waits = row.state == PENDING
    return {
        "row": row,
        "rule": row.rule,
        "look": AGAIN if waits and row.error else LOOKS[row.state],
        "subject": message.subject.removeprefix("[Longwatch] "),
        "link": message.fields["url"],
        "next_at": row.rule.next_at if waits and row.attempts else None,
        "dead": row.state == DEAD,
    }
