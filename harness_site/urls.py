"""Where the parts hang: pages at the root, the API below /api/v1/, raw rows below /admin/."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("ledger.api.urls")),
    path("", include("dashboard.urls")),
]

handler404 = "dashboard.access.show_missing"
handler500 = "dashboard.outages.show_fault"
