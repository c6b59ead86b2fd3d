"""Stands in for `django.contrib.admin` in INSTALLED_APPS."""

from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class LongwatchAdminConfig(AdminConfig):
    """Django's admin with a site of ours."""

    default_site = "harness_site.admin_site.LongwatchAdmin"
