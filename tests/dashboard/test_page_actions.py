"""The list of actions is whole: every form that writes, every route, nobody without the scope."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.page_actions import ANYBODY, PAGE_ACTIONS
from dashboard.urls import urlpatterns
from ledger.access import ROLES
from ledger.workflows import Workflow
from tests.dashboard.test_access import FILL
from tests.dashboard.test_templates import TEMPLATES

FORM = re.compile(r"""<form\b[^>]*\bmethod="post"[^>]*>""")
GOAL = re.compile(r"""action="{% url ['"]dashboard:([\w-]+)['"]""")


def test_every_form_that_writes_is_of_an_action() -> None:
    goals = set()
    for template in TEMPLATES:
        if template.parent.name != "dashboard":
            continue
        for form in FORM.findall(template.read_text()):
            goal = GOAL.search(form)
            assert goal, f"{template.name}: {form}"
            goals.add(goal[1])
    assert goals == {action.route for action in PAGE_ACTIONS.values() if action.writes}


def test_every_action_has_a_route() -> None:
    routes = {str(route.name) for route in urlpatterns}
    assert {action.route for action in PAGE_ACTIONS.values()} <= routes


@pytest.mark.parametrize(
    "name", [name for name, one in PAGE_ACTIONS.items() if one.writes and one.scope != ANYBODY]
)
@pytest.mark.parametrize("role", ["", *ROLES])
def test_nobody_writes_without_the_scope(
    sign_in: Callable[..., Client], three: Workflow, name: str, role: str
) -> None:
    action = PAGE_ACTIONS[name]
    route = next(one for one in urlpatterns if one.name == action.route)
    keys = {key: FILL[key] for key in route.pattern.converters}  # type: ignore[union-attr]
    keys |= {"name": three.name} if action.route == "workflow" else {}
    path = reverse(f"dashboard:{action.route}", kwargs=keys)
    status = sign_in(role, f"of-{role}").post(path).status_code
    # Who may is told what is wrong with the empty form, or that there is no such row.
    assert (status == 403) is (action.scope not in ROLES.get(role, ()))
