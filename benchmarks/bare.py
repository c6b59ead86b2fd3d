"""The routes of the site, and a view of one indexed query: what pages are compared with."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from ledger.models import Task


def show_newest(request: HttpRequest) -> HttpResponse:
    """The newest task's title."""
    return HttpResponse(Task.objects.values_list("title").order_by("-created_at", "-id")[:1])


urlpatterns = [path("bare/", show_newest), path("", include("harness_site.urls"))]
