"""Rules: made, changed, tested and removed by people, each on record."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, Final
from uuid import UUID

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from ledger import auditing, clock, outbox, sql
from ledger.alerts import kinds, webhook
from ledger.calls import read_call, sees_lane
from ledger.errors import InvalidInput, NotFound
from ledger.events import Actor
from ledger.models import AlertDelivery, AlertRule
from ledger.models.alerts import DEAD, PENDING

OLD_SECRET_HOURS: Final = 24
"""After a rotation both secrets sign for so long."""

MAX_ADDRESSES: Final = 20

LOCAL_SCHEMES: Final = frozenset(
    "blink1 dbus file gio glib gnome kde macosx qt rsyslog syslog windows".split()
)
"""Services of apprise that act on the machine of the workers, or (rsyslog) look a name up where
`addresses.guard_lookups` does not see it."""


@dataclasses.dataclass(frozen=True, slots=True)
class RuleDraft:
    """What a person chose. Empty filters let everything pass."""

    name: str
    kinds: list[str]
    channel: str
    target: str
    workflow: str = ""
    lane: str = ""
    tag: str = ""
    risk: str = ""
    percent: int = 80
    minutes: int = 15
    enabled: bool = True

    def check(self) -> None:
        """Raise InvalidInput, naming the field."""
        if not self.name.strip() or len(self.name) > 100 or not self.name.isprintable():
            raise InvalidInput("name", "takes 1 to 100 visible characters")
        if not self.kinds or set(self.kinds) - kinds.KINDS.keys():
            raise InvalidInput("kinds", f"takes one or more of {', '.join(kinds.KINDS)}")
        for field in ("workflow", "lane", "tag"):
            if len(getattr(self, field)) > 100 or "\0" in getattr(self, field):
                raise InvalidInput(field, "takes at most 100 characters")
        if not sees_lane(self.lane):
            raise InvalidInput(
                "lane", f"takes one of: {', '.join(sorted(read_call().lanes or ()))}"
            )
        if self.risk and self.risk not in kinds.RISKS:
            raise InvalidInput("risk", f"takes one of {', '.join(kinds.RISKS)}")
        if not 1 <= self.percent <= 100:
            raise InvalidInput("percent", "takes 1 to 100")
        if not 1 <= self.minutes <= 100_000:
            raise InvalidInput("minutes", "takes 1 to 100000")
        check_target(self.channel, self.target)


def check_target(channel: str, target: str) -> None:
    """Raise InvalidInput unless `target` is what `channel` sends to. Looks nothing up."""
    if channel not in kinds.CHANNELS:
        raise InvalidInput("channel", f"takes one of {', '.join(kinds.CHANNELS)}")
    if not target.strip() or len(target) > 2000 or not target.isprintable():
        raise InvalidInput("target", "takes 1 to 2000 visible characters")
    if channel == kinds.EMAIL:
        found = split_addresses(target)
        if not 1 <= len(found) <= MAX_ADDRESSES:
            raise InvalidInput("target", f"takes 1 to {MAX_ADDRESSES} addresses, comma between")
        for address in found:
            try:
                validate_email(address)
            except ValidationError:
                raise InvalidInput("target", f"{address!r} is no e-mail address") from None
    elif channel == kinds.WEBHOOK:
        try:
            webhook.split_url(target)
        except ValueError as error:
            raise InvalidInput("target", str(error)) from None
    else:
        from apprise import Apprise  # half a second and 30 MB, for those who use it

        scheme = target.partition("://")[0].lower()
        if scheme in LOCAL_SCHEMES or Apprise.instantiate(target) is None:
            raise InvalidInput("target", "is no address of a service that apprise knows")


def split_addresses(target: str) -> list[str]:
    """The addresses of an e-mail target."""
    return [part.strip() for part in target.split(",") if part.strip()]


def make_rule(draft: RuleDraft, actor: Actor) -> tuple[AlertRule, str]:
    """A new rule and, of a webhook, its secret, which is shown this once."""
    draft.check()
    secret = webhook.make_secret() if draft.channel == kinds.WEBHOOK else ""
    with sql.atomic():
        now = clock.read()
        rule = AlertRule.objects.create(
            **dataclasses.asdict(draft), secret=secret, created_by=str(actor), created_at=now,
            updated_at=now, next_at=now,
        )  # fmt: skip
        _note(rule, actor, "make_alert_rule", now, after=_show(rule))
    return rule, secret


def edit_rule(rule_id: UUID, draft: RuleDraft, actor: Actor) -> str:
    """Change a rule; the secret, if it became a webhook. What failed before is tried at once."""
    draft.check()
    with sql.atomic():
        rule, now = _lock_rule(rule_id)
        before = _show(rule)
        secret = ""
        if draft.channel == kinds.WEBHOOK and not rule.secret:
            secret = webhook.make_secret()
        AlertRule.objects.filter(pk=rule.pk).update(
            **dataclasses.asdict(draft), secret=secret or rule.secret, updated_at=now,
            failures=0, next_at=now,
        )  # fmt: skip
        rule.refresh_from_db()
        _note(rule, actor, "edit_alert_rule", now, before=before, after=_show(rule))
    return secret


def remove_rule(rule_id: UUID, actor: Actor) -> None:
    """End a rule for good; what waits for it goes onto the dead list."""
    with sql.atomic():
        rule, now = _lock_rule(rule_id)
        AlertRule.objects.filter(pk=rule.pk).update(enabled=False, removed_at=now)
        rule.deliveries.filter(state=PENDING).update(
            state=DEAD, settled_at=now, error="the rule was removed"
        )
        _note(rule, actor, "remove_alert_rule", now, before=_show(rule))


def rotate_secret(rule_id: UUID, actor: Actor) -> str:
    """A new secret, shown this once; the one before signs beside it for a day."""
    with sql.atomic():
        rule, now = _lock_rule(rule_id)
        if rule.channel != kinds.WEBHOOK:
            raise InvalidInput("channel", "only a webhook has a secret")
        secret = webhook.make_secret()
        AlertRule.objects.filter(pk=rule.pk).update(
            secret=secret, old_secret=rule.secret, updated_at=now,
            old_secret_until=now + dt.timedelta(hours=OLD_SECRET_HOURS),
        )  # fmt: skip
        _note(rule, actor, "rotate_alert_secret", now)
    return secret


def send_test(rule_id: UUID, actor: Actor) -> UUID:
    """Put a test into the outbox, for this rule alone: it goes the way of every alert. Its id."""
    with sql.atomic():
        rule, now = _lock_rule(rule_id)
        if not rule.enabled:
            raise InvalidInput("enabled", "the rule is off; switch it on to test it")
        note = f"A test of the rule “{rule.name}”, asked for by {actor}."
        made = outbox.post_alert(kinds.TEST, now, {"note": note}, only=rule)
        AlertRule.objects.filter(pk=rule.pk).update(next_at=now)
        _note(rule, actor, "test_alert_rule", now)
    return made.pk


def replay_dead(rule_id: UUID, actor: Actor, number: int | None = None) -> int:
    """Try what a rule gave up again, of one number or all of it; how many."""
    with sql.atomic():
        rule, now = _lock_rule(rule_id)
        dead = rule.deliveries.filter(state=DEAD)
        if number is not None:
            dead = dead.filter(seq=number)
        count = dead.update(state=PENDING, attempts=0, settled_at=None)
        if count:
            AlertRule.objects.filter(pk=rule.pk).update(failures=0, next_at=now)
            _note(rule, actor, "replay_alerts", now, after={"deliveries": count})
    return count


def list_rules() -> list[Any]:
    """All rules that stand, by name; `dead` and `waiting` are how many deliveries of each."""
    return list(see_rules().annotate(dead=_count_of(DEAD), waiting=_count_of(PENDING)))


def see_rules() -> QuerySet[AlertRule]:
    """The rules that stand; for who is limited to lanes, those of such a lane alone."""
    rows = AlertRule.objects.filter(removed_at__isnull=True)
    lanes = read_call().lanes
    return rows if lanes is None else rows.filter(lane__in=lanes)


def _count_of(state: str) -> Coalesce:
    """So many deliveries of a rule are in that state, over its partial index."""
    rows = AlertDelivery.objects.filter(rule=OuterRef("pk"), state=state).order_by()
    counts = rows.values("rule").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(counts), 0)


def list_deliveries(state: str = "", limit: int = 50) -> list[AlertDelivery]:
    """The last deliveries, newest first, with rule and outbox."""
    rows = AlertDelivery.objects.select_related("rule", "outbox").order_by("-id")
    if (lanes := read_call().lanes) is not None:
        rows = rows.filter(rule__lane__in=lanes)
    return list((rows.filter(state=state) if state else rows)[:limit])


def hide_target(rule: AlertRule) -> str:
    """The target without what may be a key in it."""
    if rule.channel == kinds.EMAIL:
        return rule.target
    scheme, _, rest = rule.target.partition("://")
    if rule.channel == kinds.APPRISE:
        return f"{scheme}://…"
    host, slash, _ = rest.partition("/")
    return f"{scheme}://{host}{'/…' if slash else ''}"


def _lock_rule(rule_id: UUID) -> tuple[AlertRule, dt.datetime]:
    rule = see_rules().select_for_update().filter(pk=rule_id).first()
    if rule is None:
        raise NotFound("alert rule", rule_id)
    return rule, clock.read()


def _show(rule: AlertRule) -> dict[str, Any]:
    """A rule for the audit log, without keys."""
    names = ("name", "kinds", "workflow", "lane", "tag", "risk", "percent", "minutes", "channel",
             "enabled")  # fmt: skip
    return {name: getattr(rule, name) for name in names} | {"target": hide_target(rule)}


def _note(rule: AlertRule, actor: Actor, action: str, now: dt.datetime, **what: Any) -> None:
    auditing.write_entry(actor, action, f"alert:{rule.pk}", at=now, reason=rule.name, **what)
