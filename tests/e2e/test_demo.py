"""The promise of the front page: `make up`, follow the link, watch a real package be modernised."""

from __future__ import annotations

import gzip
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import Product, strict_page, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(450)]

STATE = """() => {
    const vitals = document.querySelector('#task-vitals');
    const step = document.querySelector('#task-timeline tr[aria-current] .step a');
    const units = document.querySelector('#task-tabs a[href="#task-panel"] .n');
    return [vitals.dataset.status, step ? step.textContent : '', units.textContent].join(' ');
}"""
REVIEW_SECONDS, END_SECONDS = 170.0, 90.0


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    """The product on an empty ledger."""
    made = Product(tmp_path / "var")
    yield made
    made.kill()


def watch(page: Any, until: str, seconds: float) -> list[str]:
    """Every state that the page shows by itself, until one begins with `until`."""
    seen: list[str] = []

    def look() -> bool:
        # Playwright's own wait_for_function needs eval, which the policy refuses.
        state = page.evaluate(STATE)
        if not seen or seen[-1] != state:
            seen.append(state)
        return bool(state.startswith(until))

    wait_until(look, seconds)
    return seen


def download(page: Any, name: str, folder: Path) -> Path:
    """An artifact, by a click on its link."""
    with page.expect_download() as waiting:
        page.locator("#task-side .files a[download]", has_text=name).click()
    target = folder / name
    waiting.value.save_as(target)
    return target


def read_tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Path -> bytes and exec bit of every file, git's own left out."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def unpack(archive: Path, folder: Path) -> Path:
    """The tree in a published archive."""
    folder.mkdir()
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def apply_patch(patch: Path, folder: Path) -> None:
    """Apply for real, at the root of a fresh repository outside any other."""
    plain = {"cwd": folder, "check": True, "capture_output": True}
    subprocess.run(["git", "init", "-q"], **plain)  # type: ignore[call-overload]
    subprocess.run(["git", "apply", "-p1", str(patch)], **plain)  # type: ignore[call-overload]


def test_make_up_modernises_a_real_package_before_ones_eyes(
    product: Product, browser: Any, tmp_path: Path
) -> None:
    with strict_page(browser) as page:
        link = product.find_link()
        page.goto(link)
        assert page.url.rstrip("/") == f"http://localhost:{product.port}"
        page.locator(".side").get_by_role("link", name="Tasks").click()
        page.get_by_role("link", name="Modernise simplejson").click()
        page.wait_for_selector("#task-vitals")

        seen = watch(page, "waiting", REVIEW_SECONDS)
        assert len({state.split()[1] for state in seen}) >= 3, seen  # steps, without a reload
        assert len(seen) >= 5, seen

        repaired = page.locator("#task-events .hist li", has_text="Restarted from a step")
        assert repaired.count() == 1
        assert "simplejson/compat.py" in repaired.inner_text()
        assert "1 of" in page.locator(".vital", has_text="Repairs").inner_text()
        assert "superseded, not deleted" in page.locator("#task-past").inner_text()
        assert page.locator("#task-timeline .lane .b-old").count() > 0

        page.locator("#task-side a", has_text="Take ruff's fixes in 34 files").click()
        page.wait_for_selector("#answer")
        request = page.locator(".q").inner_text()
        assert "simplejson/compat.py" in request
        assert "283" in request
        assert page.locator(".fitem").count() == 34
        page.locator(".fitem summary").nth(3).click()
        assert page.locator(".fitem table.diff tr.add").count() > 0
        page.get_by_role("button", name="Approve").click()
        page.wait_for_selector("#state[data-status=approved]")

        page.locator(".meta a", has_text="Modernise simplejson").click()
        page.wait_for_selector("#task-vitals")
        watch(page, "completed", END_SECONDS)
        wait_until(lambda: page.locator("[hx-trigger^=every]").count() == 0, 10)

        names = ("simplejson.patch", "simplejson.tar.gz", "original.tgz", "report.md")
        files = {name: download(page, name, tmp_path) for name in names}

    original = unpack(files["original.tgz"], tmp_path / "original")
    published = unpack(files["simplejson.tar.gz"], tmp_path / "published")
    assert read_tree(original) != read_tree(published)
    apply_patch(files["simplejson.patch"], original)
    assert read_tree(original) == read_tree(published)
    compat = "simplejson/compat.py"
    assert read_tree(published)[compat] == read_tree(original)[compat]
    assert "compat.py" in files["report.md"].read_text()

    assert product.stop(), product.output


def measure_first_view(browser: Any, state: Any, url: str) -> tuple[int, int]:
    """(bytes as sent, requests) of a page in a browser that has never been here.

    A page itself is counted as a proxy compresses it: the site leaves that to the proxy.
    """
    with strict_page(browser, storage_state=state) as page:
        sent: list[Any] = []
        page.on("requestfinished", lambda one: sent.append(one))
        page.goto(url, wait_until="networkidle")
        first = [one for one in sent if one.headers.get("hx-request") != "true"]
        pages = [one for one in first if one.resource_type == "document"]
        assert len(pages) == 1
        for one in first:
            if one not in pages:
                assert "immutable" in one.response().headers["cache-control"], one.url
        statics = sum(one.sizes()["responseBodySize"] for one in first if one not in pages)
        return statics + len(gzip.compress(pages[0].response().body(), 6)), len(first)


def test_the_link_works_once_and_opens_what_is_light(product: Product, browser: Any) -> None:
    link = product.find_link()
    with strict_page(browser) as page:
        page.goto(link)
        page.locator(".side").get_by_role("link", name="Tasks").click()
        page.get_by_role("link", name="Modernise simplejson").click()
        page.wait_for_selector("#task-vitals")
        state, root = page.context.storage_state(), f"http://localhost:{product.port}"
        for url in (f"{root}/", f"{root}/tasks/", page.url):
            size, requests = measure_first_view(browser, state, url)
            assert 20_000 < size <= 120_000, url  # more than nothing: it was counted
            assert 4 <= requests <= 6, url
    with strict_page(browser) as page:
        page.expected.add(410)
        page.goto(link)
        assert page.get_by_role("heading", name="This link no longer works").is_visible()
    assert product.stop(), product.output
