"""What a person chooses is kept with them, shown on every page, and costs a poll nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from dashboard.preferences import THEME_COOKIE
from ledger import states
from ledger.models import AuditEntry, Preference, SavedView
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import make_in

HERE = "http://testserver"
WHOLE = {"zone": "Europe/Berlin", "hours": "12", "theme": "dark", "density": "compact",
         "keys": "off"}  # fmt: skip


@pytest.mark.both_databases
def test_what_is_chosen_is_on_every_page_and_on_record(operator: Client) -> None:
    fresh = operator.get("/tasks/").content.decode()
    assert 'data-theme="system" data-density="roomy" data-keys="on" data-zone=""' in fresh
    assert operator.post("/settings/", WHOLE)["Location"] == "/settings/"
    page = operator.get("/tasks/").content.decode()
    assert 'data-theme="dark" data-density="compact" data-keys="off"' in page
    assert 'data-zone="Europe/Berlin" data-hours="12"' in page
    assert 'title="Times are shown in this zone"><u>Europe/Berlin<' in page
    form = operator.get("/settings/").content.decode()
    for chosen in ('"Europe/Berlin" selected', '"12" checked', '"dark" checked', '"off" checked'):
        assert chosen in form
    entry = AuditEntry.objects.get(action="change_settings")
    assert entry.after == {"zone": "Europe/Berlin", "hours": 12, "theme": "dark",
                           "density": "compact", "keys": False}  # fmt: skip


@pytest.mark.both_databases
def test_a_field_that_is_sent_alone_leaves_the_others(operator: Client) -> None:
    operator.post("/settings/", WHOLE)
    answer = operator.post("/settings/", {"keys": "on"}, headers={"Referer": f"{HERE}/legend/?a=1"})
    assert (answer.status_code, answer["Location"]) == (303, "/legend/?a=1")
    kept = Preference.objects.values("zone", "hours", "theme", "density", "keys").get()
    assert kept == {"zone": "Europe/Berlin", "hours": 12, "theme": "dark",
                    "density": "compact", "keys": True}  # fmt: skip


@pytest.mark.parametrize(
    ("page", "back"),
    [("https://evil.example/", "/settings/"), ("evil", "/settings/"),
     (f"{HERE}//evil.example/", "/evil.example/")],
)  # fmt: skip
def test_the_form_leads_to_no_other_site(operator: Client, page: str, back: str) -> None:
    answer = operator.post("/settings/", {"keys": "on"}, headers={"Referer": page})
    assert answer["Location"] == back


@pytest.mark.parametrize(
    "wrong",
    [{"zone": "Mars/Olympus"}, {"zone": "../../etc/passwd"}, {"zone": "x" * 65}, {"hours": "13"},
     {"theme": "loud"}, {"keys": "maybe"}, {"density": ""}],
)  # fmt: skip
def test_what_there_is_not_is_refused_in_words(operator: Client, wrong: dict[str, str]) -> None:
    answer = operator.post("/settings/", wrong)
    assert answer.status_code == 422
    assert "Nothing was saved." in answer.content.decode()
    assert not Preference.objects.exists()


def test_people_choose_for_themselves(sign_in: Callable[..., Client]) -> None:
    ann, ben = sign_in("operator", "ann"), sign_in("viewer", "ben")
    ann.post("/settings/", {"theme": "dark"})
    ben.post("/settings/", {"theme": "light"})
    assert 'data-theme="dark"' in ann.get("/").content.decode()
    assert 'data-theme="light"' in ben.get("/").content.decode()


def test_the_theme_is_known_where_people_sign_in(operator: Client) -> None:
    part = operator.post("/settings/", {"theme": "dark"}, headers=PART)
    assert part.content.decode().strip().startswith('<form id="theme" data-theme="dark"')
    operator.post("/logout/")
    assert 'data-theme="dark"' in operator.get("/login/").content.decode()
    operator.cookies[THEME_COOKIE] = '"><script>'
    assert 'data-theme="system"' in operator.get("/login/").content.decode()


def test_a_zone_that_the_machine_has_no_more_is_shown_as_utc(operator: Client) -> None:
    operator.post("/settings/", {"zone": "Europe/Berlin"})
    Preference.objects.update(zone="Europe/Atlantis")
    page = operator.get("/settings/").content.decode()
    assert 'title="Times are shown in this zone"><u>UTC<' in page


@pytest.mark.both_databases
@pytest.mark.parametrize("role", ["operator", "superuser"])
def test_an_unchanged_poll_reads_no_preferences(
    sign_in: Callable[..., Client], three: Workflow, django_assert_max_num_queries: Any, role: str
) -> None:
    client = sign_in(role)
    make_in(states.QUEUED, three)
    tag = client.get("/tasks/", headers=PART)["HX-PTag"]
    with django_assert_max_num_queries(12) as seen:
        assert client.get("/tasks/", headers=PART | {"HX-PTag": tag}).status_code == 304
    asked = [one["sql"] for one in seen.captured_queries if "longwatch_preference" in one["sql"]]
    assert all("longwatch_reach" in one for one in asked)  # with the role, or not at all


@pytest.mark.both_databases
def test_tasks_opens_with_the_view_that_was_chosen(operator: Client, three: Workflow) -> None:
    assert 'href="/tasks/" data-go="t"' in operator.get("/").content.decode()
    operator.post("/tasks/views/new/", {"name": "Nights", "state": "lane=night&columns=task,lane"})
    view = SavedView.objects.get()
    assert f'<option value="{view.pk}">Nights' in operator.get("/settings/").content.decode()
    for key, query in ((str(view.pk), f"lane=night&columns=task%2Clane&view={view.pk}"),
                       ("Running", "status=running"), ("", "")):  # fmt: skip
        assert operator.post("/settings/", {"view": key}).status_code == 303
        home = operator.get("/tasks/home/")["Location"]
        assert home == (f"/tasks/?{query}" if query else "/tasks/")
        assert operator.get(home).status_code == 200
    operator.post("/settings/", {"view": str(view.pk)})
    text = operator.get("/").content.decode()
    assert 'href="/tasks/home/" data-go="t"' in text
    SavedView.objects.all().delete()
    assert operator.get("/tasks/home/")["Location"] == "/tasks/"
    assert operator.post("/settings/", {"keys": "on"}).status_code == 303
    assert operator.post("/settings/", {"view": "nonsense"}).status_code == 422


@pytest.mark.both_databases
def test_the_palette_leads_to_saved_views(sign_in: Callable[..., Client], three: Workflow) -> None:
    ann, ben = sign_in("operator"), sign_in("viewer")
    for name, shared in (("Nights", "1"), ("Nights of mine", "")):
        state = {"name": name, "state": "lane=night", "shared": shared, "pinned": "1"}
        ann.post("/tasks/views/new/", state)
    found = ann.get("/palette/?q=night", headers=PART).content.decode()
    assert found.count("lane=night&amp;view=") == 2
    assert ann.get("/palette/", headers=PART).content.decode().count("lane=night") == 2
    found = ben.get("/palette/?q=NIGHT", headers=PART).content.decode()
    assert found.count("lane=night") == 1
    assert "shared view" in found
    assert "lane=night" not in ben.get("/palette/", headers=PART).content.decode()
    assert "attention=yes" in ben.get("/palette/?q=atten", headers=PART).content.decode()
