"""What the shell promises: the palette goes wherever the navigation does, help names the keys."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db


def test_the_palette_goes_wherever_the_navigation_does(sign_in: Callable[..., Client]) -> None:
    admin = sign_in("admin")
    page = admin.get("/settings/").content.decode()
    nav = re.search(r'<nav class="side".*?</nav>', page, re.DOTALL)
    assert nav
    found = re.findall(r'<li>\s*<a href="([^"]+)"', nav.group())
    places = [one for one in found if one != "/admin/"]
    assert {"/", "/lanes/", "/bulk/", "/tokens/", "/audit/"} <= set(places)
    pages = admin.get("/palette/").content.decode().split("<h2>")[1]
    offered = re.findall(r'href="([^"]+)"', pages)
    assert [one for one in offered if one in places] == places
    assert re.search(r"Overview</u></a>.*?<kbd>g</kbd> <kbd>o</kbd>.*?Tasks", pages)


def test_a_phone_has_a_way_to_the_palette_and_out_of_it(sign_in: Callable[..., Client]) -> None:
    page = sign_in("admin").get("/settings/").content.decode()
    bar = page[page.index('class="tabbar"') :]
    assert 'href="/palette/" data-palette' in bar
    assert re.search(r'id="palette".*?data-close', page, re.DOTALL)


def test_help_on_the_list_names_the_keys_that_select(operator: Client) -> None:
    dialog = {"HX-Request": "true"}
    assert "Select the row" in operator.get("/legend/?at=/tasks/", headers=dialog).content.decode()
    assert "Select the row" not in operator.get("/legend/?at=/", headers=dialog).content.decode()


def test_a_lane_that_was_paused_is_said_so(operator: Client) -> None:
    answer = operator.post("/lanes/act/", {"lane": "night", "do": "pause"}, follow=True)
    assert "Lane night paused." in answer.content.decode()
