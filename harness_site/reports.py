"""What a report of a fault shows, on Django's debug page or in a mail: no value that came in."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest
from django.views.debug import SafeExceptionReporterFilter


class NoValues(SafeExceptionReporterFilter):
    """Of a request the names of its fields, of a traceback its lines, of settings no secret.

    The debug page would show every local variable, so the input of a task with whatever stands in
    it, and an address of a database or of a store with its password.
    """

    hidden_settings = re.compile(
        "API|AUTH|TOKEN|KEY|SECRET|PASS|SIGNATURE|COOKIE|DATABASE|ARTIFACTS|MAIL|PROXY", re.I
    )

    def get_post_parameters(self, request: HttpRequest | None) -> dict[str, Any]:
        """What was posted, by name."""
        names = request.POST if request is not None else ()
        return dict.fromkeys(names, self.cleansed_substitute)

    def get_traceback_frame_variables(self, request: Any, tb_frame: Any) -> Any:
        """None of them."""
        return []
