"""The one-time link that `manage.py up` prints: whoever follows it is signed in."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import base36_to_int, urlsafe_base64_decode, urlsafe_base64_encode

from ledger import clock

LINK_SECONDS = 600


class LinkTokens(PasswordResetTokenGenerator):
    """Tokens that die at the next sign-in of their user, and after ten minutes.

    The sign-in's time is hashed whole: Django's own hash drops the microseconds, which would let
    a link be followed twice within the second of the last sign-in.
    """

    key_salt = "dashboard.login.LinkTokens"

    def _make_hash_value(self, user: AbstractBaseUser, timestamp: int) -> str:
        last = user.last_login.isoformat() if user.last_login else ""
        return f"{user.pk}{user.password}{last}{timestamp}"

    def check_token(self, user: Any, token: str | None) -> bool:
        """True while `token` is the user's, not followed and not older than ten minutes."""
        if not super().check_token(user, token):
            return False
        made = base36_to_int(str(token).split("-")[0])
        return self._num_seconds(self._now()) - made <= LINK_SECONDS


tokens = LinkTokens()


def make_link(user: Any) -> str:
    """The path of a link that signs `user` in, once, within ten minutes."""
    key = urlsafe_base64_encode(force_bytes(user.pk))
    return reverse("dashboard:login-link", args=[key, tokens.make_token(user)])


def spend_link(key: str, token: str) -> AbstractBaseUser | None:
    """The user that a link signs in, or None when it is wrong, old or was followed before.

    Of two requests that follow the same link at once, one gets the user: the update is guarded
    by the time of the last sign-in that the token was checked against.
    """
    users: Any = get_user_model()._default_manager
    try:
        user = users.get(pk=urlsafe_base64_decode(key).decode(), is_active=True)
    except (ValueError, OverflowError, TypeError, users.model.DoesNotExist):
        return None
    if not tokens.check_token(user, token):
        return None
    seen = {"last_login": user.last_login} if user.last_login else {"last_login__isnull": True}
    moved = users.filter(pk=user.pk, **seen).update(last_login=clock.now())
    return user if moved == 1 else None
