"""Delete the demo: what would go, what stays and why, and then the deed."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.access import PageRequest, allow
from dashboard.forms import MAX_REASON
from dashboard.htmx import make_redirect, render_page
from ledger.access import OPERATE
from ledger.transitions import deleting


class DemoForm(forms.Form):
    """Why, kept on the audit log."""

    reason = forms.CharField(
        label="Reason", required=False, max_length=MAX_REASON, widget=forms.Textarea
    )


@require_http_methods(["GET", "HEAD", "POST"])
@allow(OPERATE)
def delete_demo(request: PageRequest) -> HttpResponseBase:
    """The form, or back to the list with what has come of it."""
    form = DemoForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        found = deleting.delete_demo(actor=request.actor, reason=form.cleaned_data["reason"])
        messages.success(request, say_outcome(found))
        return make_redirect(request, reverse("dashboard:tasks"))
    found = deleting.list_demo()
    context = {
        "section": "tasks",
        "form": form,
        "found": found,
        "going": sum(not one.why for one in found),
    }
    status = 422 if form.is_bound else 200
    return render_page(request, "dashboard/demo.html", context, part="demo-form", status=status)


def say_outcome(found: list[deleting.Verdict]) -> str:
    """'2 demo tasks deleted. …' with why others stay."""
    gone = sum(not one.why for one in found)
    stays = [f" {one.title} stays: {one.why}." for one in found if one.why]
    return f"{gone} demo task{'' if gone == 1 else 's'} deleted.{''.join(stays)}"
