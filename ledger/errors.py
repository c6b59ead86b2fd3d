"""The error tree of the ledger: every error owns its message, a stable code and an HTTP status."""

from __future__ import annotations

import datetime as dt


class LedgerError(Exception):
    """Root of what the ledger raises on purpose.

    `code` is stable and public (problem details carry it); `status` is the HTTP status it maps to.
    `field` is the path of what is wrong in the request, if one thing is.
    """

    code = "ledger_error"
    status = 500
    field = ""


class StoreUnavailable(LedgerError):
    """The store of artifacts does not take or give bytes now: full, read-only, refusing, gone."""

    code = "store_unavailable"
    status = 503

    def __init__(self, place: str, what: str, cure: str) -> None:
        super().__init__(f"The artifact store {place} {what}. {cure}")
        self.place, self.what, self.cure = place, what, cure


class LeaseLost(LedgerError):
    """The caller's fence is overtaken: it holds the task no more and can write nothing to it."""

    code = "lease_lost"
    status = 409

    def __init__(
        self, task_id: object, fence: int, what: str = "", *, deleted: bool = False
    ) -> None:
        why = ": the task was deleted" if deleted else ""
        super().__init__(f"The lease of task {task_id} under fence {fence} is lost{why}.")
        self.what = what
        """The write that was refused, if it is not on record yet."""


class WrongStatus(LedgerError):
    """The edge asked for does not leave the status that the task is in."""

    code = "wrong_status"
    status = 409

    def __init__(self, action: str, status: str, hint: str = "") -> None:
        super().__init__(f"Can't {action} a task that is {status}.{' ' + hint if hint else ''}")
        self.current = status


class AlreadySettled(LedgerError):
    """The caller's own write is already in; the first answer stands."""

    code = "already_settled"
    status = 409

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is already settled.")


class WorkerEnded(LedgerError):
    """The worker has ended, or was declared dead: nothing can be told to it."""

    code = "worker_ended"
    status = 409

    def __init__(self, action: str, name: str, how: str) -> None:
        super().__init__(f"Can't {action} {name}: it {how}.")


class LeaseLocked(LedgerError):
    """A database session that stands still holds the row of a task or worker: nothing was done."""

    code = "lease_locked"
    status = 503

    def __init__(self, name: str) -> None:
        super().__init__(
            f"A database session holds a row of {name} or of its task, and does not let go. Try "
            "again; if that process stands still in the middle of a write, kill it on its host: "
            "its session ends with it."
        )


class StaleRevision(LedgerError):
    """The task changed since the caller's page or read."""

    code = "stale_revision"
    status = 409

    def __init__(self, seen: int, current: int) -> None:
        super().__init__(
            f"The task has changed since you looked (revision {seen}, now {current}). "
            "Look again, then decide."
        )


class TaskNotFound(LedgerError):
    """No task has this id."""

    code = "task_not_found"
    status = 404

    def __init__(self, task_id: object) -> None:
        super().__init__(f"There is no task {task_id}.")


class TaskRemoved(TaskNotFound):
    """There was such a task; it is gone by the site's retention. `at` is when, `days` after its
    end."""

    code = "task_removed"
    status = 410

    def __init__(self, task_id: object, at: dt.datetime, days: float) -> None:
        LedgerError.__init__(
            self,
            f"The task {task_id} was removed by retention on {at:%Y-%m-%d %H:%M} UTC, {days:g} "
            "days after its end. The audit log keeps what it was.",
        )


class ContentsRemoved(LedgerError):
    """The contents of the task are gone by the site's retention."""

    code = "contents_removed"
    status = 409

    def __init__(self) -> None:
        super().__init__(CONTENTS_REMOVED)


CONTENTS_REMOVED = (
    "Its contents were removed by retention, so it can't go on or be copied; submit a new task."
)


class NotFound(LedgerError):
    """No row of this kind has this id."""

    code = "not_found"
    status = 404

    def __init__(self, kind: str, key: object) -> None:
        super().__init__(f"There is no {kind} {key}.")


class ArtifactExpired(LedgerError):
    """The artifact was there; its bytes are gone by the site's retention."""

    code = "artifact_expired"
    status = 410

    def __init__(self, name: str, at: object) -> None:
        super().__init__(f"The artifact {name!r} expired at {at:%Y-%m-%d %H:%M} UTC.")


class InvalidInput(LedgerError):
    """Well-formed but refused; `field` is the path of what is wrong, the message names the cure."""

    code = "invalid_input"
    status = 422

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.reason = message


class UnparsableInput(InvalidInput):
    """Not JSON that both databases can hold: NaN, Infinity, NUL, lone surrogates, depth."""

    code = "unparsable_input"
    status = 400


class PayloadTooLarge(InvalidInput):
    """Larger than the bound that the message states."""

    code = "payload_too_large"
    status = 413


class UnknownWorkflow(InvalidInput):
    """Neither this process nor any live worker knows the workflow (or this version of it)."""

    code = "unknown_workflow"

    def __init__(self, name: str, version: str | None = None, known: str = "") -> None:
        wanted = name if version is None else f"{name} version {version}"
        super().__init__("workflow", f"nobody knows {wanted}.{' Known: ' + known if known else ''}")


class UnknownStep(InvalidInput):
    """The workflow has no such step."""

    code = "unknown_step"

    def __init__(self, step: object, steps: str) -> None:
        super().__init__("step", f"there is no step {step!r}; the steps are {steps}.")


class NotEditable(LedgerError):
    """This output stays as it is; the message says what to do instead."""

    code = "not_editable"
    status = 409

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"Output {seq} can't be edited: {why}.")


class IdempotencyConflict(LedgerError):
    """The key was used by the same submitter with another body."""

    code = "idempotency_conflict"
    status = 409

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The idempotency key {key!r} was used with another body. Use a new key for new work."
        )


class ApprovalClosed(LedgerError):
    """Somebody or something else decided first; the message says who and what."""

    code = "approval_closed"
    status = 409

    def __init__(self, status: str, by: str = "") -> None:
        super().__init__(f"This request is already {status}{' by ' + by if by else ''}.")
        self.current = status


class DigestMismatch(LedgerError):
    """The request changed since it was shown."""

    code = "digest_mismatch"
    status = 409

    def __init__(self) -> None:
        super().__init__("The request has changed since you were shown it. Read it again.")


class EffectConflict(LedgerError):
    """What is on record of an effect does not allow it."""

    code = "effect_conflict"
    status = 409

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"Effect {name} {why}.")


class UnknownCompensation(InvalidInput):
    """The workflow has no compensation of this name, or the function is none of its."""

    code = "unknown_compensation"

    def __init__(self, ref: object, workflow: str, known: str) -> None:
        super().__init__(
            "compensate",
            f"{ref!r:.120} is no compensation of the workflow {workflow}, which has "
            f"{known or 'none'}; register it with @{workflow}.compensation",
        )


class Compensating(LedgerError):
    """The task is undoing its effects, and how it then ends is settled."""

    code = "compensating"
    status = 409

    def __init__(self, action: str, end: str) -> None:
        super().__init__(
            f"Can't {action} it: the task is undoing its effects and then {end}. Pause it to hold "
            "that, or restart it from a step to go on instead."
        )


class NotAllowed(LedgerError):
    """The caller may not do this. `audited` once it is in the audit log."""

    code = "not_allowed"
    status = 403
    audited = False

    def __init__(self, why: str) -> None:
        super().__init__(why)


class LimitReached(LedgerError):
    """A bound of the task is used up; `reason` is the bare code that the task ends with."""

    code = "limit_reached"
    status = 409

    def __init__(
        self, reason: str, message: str, least: int = 0, owner: str = "", amount: int = 0,
        gives_way: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.reason = reason
        self.owner = owner
        """The id of the task above whose limit it is; empty for the task's own."""
        self.amount = amount
        """What was to be reserved."""
        self.least = least
        """The limit that what was refused would have needed, as its column holds it."""
        self.gives_way = gives_way
        """There is room, and someone more urgent waits for it."""


class OutOfScope(LedgerError):
    """A step wants to use what its workflow's `scope=` does not name."""

    code = "out_of_scope"
    status = 403

    def __init__(self, what: str, name: object, workflow: str, kind: str) -> None:
        super().__init__(
            f"The {what} {name!r:.120} is out of the scope of the workflow {workflow}; "
            f"name it in Scope({kind}=[…]) if its steps are to use it."
        )


class Unserialisable(LedgerError):
    """A step's value that JSON (or both databases) can't hold; `path` says where it sits."""

    code = "unserialisable_output"
    status = 422

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why
