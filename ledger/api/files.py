"""What the API says of files: artifacts, and uploads on their way in."""

from __future__ import annotations

import datetime as dt
from uuid import UUID

from pydantic import BaseModel


class ArtifactOut(BaseModel):
    """A named blob: a unit's product, or (`task` null) an upload.

    `version` counts those of one name in a task. `state` is ok, corrupt or expired.
    """

    id: UUID
    task: UUID | None
    name: str
    version: int
    latest: bool
    step: str
    turn: int
    round: int
    fence: int
    media_type: str
    size: int
    sha256: str
    state: str
    state_why: str
    supersedes: UUID | None
    copied_from: UUID | None
    made_from: list[UUID]
    created_at: dt.datetime
    expired_at: dt.datetime | None


class UploadOut(BaseModel):
    """A file on its way in: `offset` bytes of `size` have come. `artifact` is what it became."""

    id: UUID
    name: str
    media_type: str
    size: int
    sha256: str
    offset: int
    artifact: ArtifactOut | None
    created_at: dt.datetime
    expires_at: dt.datetime
