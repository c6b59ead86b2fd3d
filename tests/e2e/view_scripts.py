"""What a person does about the list of tasks and its views; test_actions.py drives it in three
ways."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.contrib.auth import get_user_model

from ledger import states
from ledger.events import Actor
from ledger.models import SavedView
from ledger.transitions import operators
from ledger.transitions.views import ViewDraft, save_view
from ledger.workflows import Workflow
from tests.e2e.hands import Mouse
from tests.e2e.kit import wait_until
from tests.factories import OPERATOR, make_in, submit

SECONDS = 30.0


def keep_view(hands: Mouse, *, shared: bool = False) -> SavedView:
    """A view of the person who looks."""
    user = get_user_model().objects.latest("pk")
    draft = ViewDraft([("lane", "night")])
    return save_view("Nights", draft, Actor("user", str(user.pk)), shared=shared)


def save(hands: Mouse, three: Workflow) -> None:
    submit(three, lane="night")
    submit(three)
    hands.page.goto("/tasks/?lane=night")
    hands.use(hands.page.get_by_text("Save view", exact=True))
    hands.write("Name of the view", "Nights")
    hands.press("Save as new view")
    hands.find("Nights 1", "link").wait_for()
    view = SavedView.objects.get()
    assert (view.filters, view.shared, len(view.pinned_by)) == ([["lane", "night"]], False, 1)
    assert f"view={view.pk}" in hands.page.url


def update(hands: Mouse, three: Workflow) -> None:
    view = keep_view(hands)
    hands.page.goto(f"/tasks/?lane=night&status=paused&view={view.pk}")
    hands.use(hands.page.get_by_text("Save view", exact=True))
    hands.press("Save changes to Nights")
    kept = [["status", "paused"], ["lane", "night"]]
    wait_until(lambda: SavedView.objects.get().filters == kept, SECONDS)


def rename(hands: Mouse, three: Workflow) -> None:
    keep_view(hands)
    hands.page.goto("/tasks/views/")
    hands.use(hands.page.get_by_label("Rename Nights…"))
    hands.write("New name of Nights", "Late shift")
    hands.press("Rename view")
    hands.find("Late shift", "link").wait_for()
    assert SavedView.objects.get().name == "Late shift"


def share(hands: Mouse, three: Workflow) -> None:
    keep_view(hands)
    hands.page.goto("/tasks/views/")
    hands.press("Share Nights")
    hands.find("Stop sharing Nights").wait_for()
    assert SavedView.objects.get().shared
    hands.press("Stop sharing Nights")
    hands.find("Share Nights").wait_for()
    assert not SavedView.objects.get().shared


def pin(hands: Mouse, three: Workflow) -> None:
    keep_view(hands)
    hands.page.goto("/tasks/views/")
    hands.press("Unpin Nights")
    hands.find("Pin Nights").wait_for()
    assert SavedView.objects.get().pinned_by == []
    hands.press("Pin Nights")
    hands.find("Unpin Nights").wait_for()
    hands.page.goto("/tasks/")
    hands.press("Nights 0", "link")
    hands.page.wait_for_url("**/tasks/?lane=night&view=*")


def delete(hands: Mouse, three: Workflow) -> None:
    keep_view(hands)
    hands.page.goto("/tasks/views/")
    hands.use(hands.page.get_by_label("Delete Nights…"))
    hands.press("Delete view Nights")
    hands.find("No saved views yet", "heading").wait_for()
    assert not SavedView.objects.exists()


def suggest(hands: Mouse, three: Workflow) -> None:
    """With a script the field offers what there is; without one its help says what there is."""
    submit(three, lane="night")
    hands.page.goto("/tasks/")
    if not hands.script:
        hands.use(hands.page.get_by_label("How to filter"))
        hands.page.get_by_text("a hyphen leaves out what matches").wait_for()
        hands.write("Text of title", "-lane:night")
        hands.press("Filter")
        hands.page.wait_for_url("**/tasks/?not_lane=night")
        return
    field = hands.find_field("Text of title")
    hands.write("Text of title", "-la")
    offered = hands.page.get_by_role("option")
    offered.get_by_text("-lane:", exact=True).wait_for()
    hands.page.keyboard.press("ArrowDown")
    hands.page.keyboard.press("Enter")
    night = offered.get_by_text("-lane:night", exact=True)
    night.wait_for()
    if type(hands) is Mouse:
        night.click()
    else:
        hands.page.keyboard.press("ArrowUp")
        marked = field.get_attribute("aria-activedescendant")
        assert hands.page.locator(f"#{marked}").inner_text() == "-lane:night"
        hands.page.keyboard.press("Enter")
    assert field.input_value() == "-lane:night "
    hands.page.keyboard.press("Enter")
    hands.page.wait_for_url("**/tasks/?not_lane=night")


def choose_columns(hands: Mouse, three: Workflow) -> None:
    submit(three, lane="night", tags=["north"])
    hands.page.goto("/tasks/")
    hands.use(hands.page.locator("summary", has_text=re.compile("^Columns")))
    hands.press("Show Lane, tags", "link")
    hands.find("Hide Lane, tags", "link").wait_for()
    hands.press("Hide Money", "link")
    hands.find("Show Money", "link").wait_for()
    hands.press("Move Lane, tags up", "link")
    hands.page.wait_for_url("**attempt%2Clane%2Cworker*")
    heads = [one.strip() for one in hands.page.locator(".tasks thead th").all_inner_texts()]
    wanted = "Status Task Step Progress Age Attempt".split()
    assert [one for one in heads if one] == [*wanted, "Lane, tags", "Worker"]
    assert hands.page.get_by_role("cell", name="night north").count() == 1


def list_rows(hands: Mouse) -> list[str]:
    """The ids of the tasks in the list."""
    rows = hands.page.locator(".tasks tbody tr").all()
    return [str(row.get_attribute("id")).removeprefix("row-") for row in rows]


def filter_tasks(hands: Mouse, three: Workflow) -> None:
    night, _ = submit(three, title="Ferry", lane="night"), submit(three, title="Ferry")
    hands.page.goto("/tasks/?workflow=three")
    hands.write("Text of title", "lane:night ferry")
    hands.press("Filter")
    hands.page.wait_for_url("**/tasks/?*lane=night*")
    assert list_rows(hands) == [str(night.id)]
    assert "workflow=three" in hands.page.url


def take_a_filter_away(hands: Mouse, three: Workflow) -> None:
    submit(three, title="Ferry", lane="night")
    submit(three, title="Water")
    hands.page.goto("/tasks/?lane=night&q=water")
    hands.page.get_by_role("heading", name="No task matches").wait_for()
    hands.press("Remove filter text water", "link")
    hands.page.wait_for_url("**/tasks/?lane=night")
    assert len(list_rows(hands)) == 1


def choose_a_tab(hands: Mouse, three: Workflow) -> None:
    paused = make_in(states.PAUSED, three)
    submit(three)
    hands.page.goto("/tasks/")
    hands.press("Paused 1", "link")
    hands.page.wait_for_url("**/tasks/?status=paused")
    assert list_rows(hands) == [str(paused.id)]


def select(hands: Mouse, three: Workflow) -> None:
    """A range of rows, left chosen by a poll; a button says how many it would be done to."""
    tasks = {name: submit(three, title=name) for name in ("One", "Two", "Three", "Four")}
    page = hands.page
    page.goto("/tasks/")
    if not hands.script:
        for name in ("Two", "Three", "Four"):
            hands.tick(f"Select {name}")
        hands.press("Pause")
    else:
        if type(hands) is Mouse:
            page.get_by_label("Select Four").click()
            page.get_by_label("Select Two").click(modifiers=["Shift"])
        else:
            for key in ("j", "x", "j", "j", "Shift+X"):
                page.keyboard.press(key)
        page.get_by_text("3 selected", exact=True).first.wait_for()
        hands.find("Pause 3").wait_for()
        operators.pause_task(tasks["Three"].id, actor=OPERATOR)
        hands.find("Pause 2").wait_for()  # as a poll tells
        hands.find("Resume 1").wait_for()
        assert page.locator("input[name=task]:checked").count() == 3
        hands.press("Pause 2")
    count = 2 if hands.script else 3
    hands.find(f"Pause {count} tasks").wait_for()
    assert page.url.count("task=") == 3


SCRIPTS: dict[str, Callable[[Mouse, Workflow], None]] = {
    "view.save": save, "view.update": update, "view.rename": rename, "view.share": share,
    "view.pin": pin, "view.delete": delete, "tasks.suggest": suggest,
    "tasks.columns": choose_columns, "tasks.filter": filter_tasks,
    "tasks.select": select, "tasks.unfilter": take_a_filter_away, "tasks.tab": choose_a_tab,
}  # fmt: skip
