"""The ways to send: each takes a job to its end and says what came of it. None needs the database.

They run in a process of their own that is killed at the deadline (`ledger.sender`), because a
lookup of a name, a mail library or a service's client can't be told to end in time.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import Final

from django.core import mail
from django.core.mail import EmailMessage

from ledger import secrets
from ledger.alerts import addresses, kinds, webhook
from ledger.alerts.deliveries import Job, Outcome
from ledger.alerts.messages import flatten_text
from ledger.alerts.rules import split_addresses


def send_job(job: Job) -> Outcome:
    """Send, and say what came of it in a sentence without the target's keys. Never raises."""
    try:
        SENDERS[job.channel](job)
    except webhook.Refused as error:
        return Outcome(str(error), refused=True)
    except (webhook.Unreachable, addresses.AddressRefused) as error:
        return Outcome(flatten_text(error))
    except Exception as error:
        text = secrets.mask_text(f"{type(error).__name__}: {error}").replace(job.target, "…")
        return Outcome(flatten_text(text) or type(error).__name__)
    return Outcome()


def _post(job: Job) -> None:
    webhook.post_signed(
        job.target, job.message.make_body(job.seq), message_id=job.message.id,
        timestamp=job.timestamp, keys=list(job.keys), seconds=job.seconds,
    )  # fmt: skip


def _mail(job: Job) -> None:
    """Through the project's mailer. The id is the same each time, so that who gets it twice can
    tell."""
    message = EmailMessage(
        job.message.subject, job.message.text, None, split_addresses(job.target),
        headers={
            "Message-ID": f"<{job.message.id}.{job.rule_id}@longwatch>",
            "Auto-Submitted": "auto-generated",
        },
    )  # fmt: skip
    mail.mailers.default.send_messages([message])


def _notify(job: Job) -> None:
    from apprise import Apprise, NotifyFormat

    addresses.guard_lookups()
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    log = logging.getLogger("apprise")
    log.addHandler(handler)
    service = Apprise()
    try:
        done = service.add(job.target) and service.notify(
            title=job.message.subject, body=job.message.text, body_format=NotifyFormat.TEXT
        )
    finally:
        log.removeHandler(handler)
    if not done:
        raise webhook.Unreachable(said.getvalue().replace(job.target, "…") or "it was not taken")


SENDERS: Final[dict[str, Callable[[Job], None]]] = {
    kinds.EMAIL: _mail, kinds.WEBHOOK: _post, kinds.APPRISE: _notify,
}  # fmt: skip
