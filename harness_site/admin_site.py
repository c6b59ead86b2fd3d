"""The site's admin: for admins, signed in where everybody signs in, without django-q2's tables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.admin import AdminSite, autodiscover
from django.contrib.auth.views import LogoutView, redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from ledger.access import is_admin
from ledger.api.edge import noting_refusals

HIDDEN = frozenset({"django_q"})
"""Apps whose tables hold nothing of ours: the queue is the ledger."""


class LongwatchAdmin(AdminSite):
    """Pages below /admin/."""

    site_header = "Longwatch admin"
    site_title = "Longwatch"
    index_title = "Raw rows and people"

    def get_urls(self) -> Any:
        """Of every app's `admin` module, which is imported here first."""
        autodiscover()
        return super().get_urls()

    def check(self, app_configs: Any) -> Any:
        """The same modules, for `manage.py check`."""
        autodiscover()
        return super().check(app_configs)

    def has_permission(self, request: HttpRequest) -> bool:
        """By role, as everywhere; Django's staff flag plays no part."""
        return is_admin(request.user)

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Every page: on record with its address, and a refusal by what was asked for."""
        inner = super().admin_view(view, cacheable)

        @functools.wraps(view)
        def run_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            with noting_refusals(request):
                if request.user.is_authenticated and not self.has_permission(request):
                    raise PermissionDenied
                return inner(request, *args, **kwargs)

        return run_view

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        """What is hidden is not registered."""
        models = (
            model_or_iterable
            if isinstance(model_or_iterable, (list, tuple))
            else [model_or_iterable]
        )
        shown = [model for model in models if model._meta.app_label not in HIDDEN]
        super().register(shown, admin_class, **options)

    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The one sign-in page of the site. Raises PermissionDenied for who is signed in."""
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(request.GET.get("next") or reverse("admin:index"))

    def logout(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """Out, and back to the sign-in page."""
        return LogoutView.as_view(next_page=settings.LOGIN_URL)(request)
