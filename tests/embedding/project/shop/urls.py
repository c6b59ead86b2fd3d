"""The shop's addresses; the test appends the block of docs/embedding.md."""

from django.contrib import admin
from django.urls import path

from shop import views

urlpatterns = [
    path("", views.home),
    path("buy/", views.buy),
    path("accounts/login/", views.login, name="login"),
    path("admin/", admin.site.urls),
]
