"""Routes of the machine surface: the API below api/v1/, health and metrics outside it."""

from django.urls import URLPattern, URLResolver

urlpatterns: list[URLPattern | URLResolver] = []
