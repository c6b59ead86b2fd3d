"""A task as one file."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.bundles import Bundle
from ledger import queries
from ledger.access import READ
from ledger.auditing import write_entry
from ledger.calls import read_call


@require_safe
@allow(READ)
def download_bundle(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """Everything that is told of the task, as a ZIP that is written while it is sent; on record."""
    queries.read_revision(task_id)  # nothing is sent, or put on record, of what is not there
    if request.method == "GET":
        write_entry(request.actor, "export_task", str(task_id), task=task_id)
    bundle = Bundle(task_id, read_call()).write()
    response = StreamingHttpResponse(bundle, content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="task-{str(task_id)[:8]}.zip"'
    return response
