"""The house rules of the pages: strict CSP, htmx 4 and nothing else, all of it without a script."""

from __future__ import annotations

import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.conftest import ROOT

TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
VENDORED = ROOT / "static" / "vendor"

FORBIDDEN = {
    r"\bstyle\s*=": "an inline style, which the CSP refuses",
    r"<style": "an inline stylesheet",
    r"<script(?![^>]*\bsrc=)": "an inline script",
    r"\son[a-z]+\s*=": "an event handler in an attribute",
    r"hx-on": "a script in an attribute",
    r"\bjs:|javascript:": "a script in an attribute",
    r'hx-trigger="[^"]*\[': "a trigger filter, which needs eval",
    r"\bhx-(ext|disabled-elt|vars|request|disinherit|boost)\b": "htmx 2, or unused",
    r"sse-connect|ws-connect": "htmx 2",
    r'hx-swap="morph': "htmx 2",
    r"htmx:[a-z]+[A-Z]": "an event name of htmx 2",
    r"https?://(?!www\.w3\.org/)": "an address of another host",
    r"\|safe\b|autoescape off": "text that nobody escapes",
}


class Elements(HTMLParser):
    """Every start tag of a template with its attributes; Django's own tags are blanked out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.forms: list[str] = []
        self.feed(re.sub(r"{%.*?%}|{#.*?#}", "", text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.found.append((tag, {name: value or "" for name, value in attrs}))


def read(template: Path) -> list[tuple[str, dict[str, str]]]:
    """The elements of a template."""
    return Elements(template.read_text()).found


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_nothing_that_the_policy_or_htmx_4_refuses(template: Path) -> None:
    text = template.read_text()
    found = [why for pattern, why in FORBIDDEN.items() if re.search(pattern, text)]
    assert found == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_polled_part_can_be_morphed_and_answered_with_304(template: Path) -> None:
    for tag, attrs in read(template):
        if not attrs.get("hx-trigger", "").startswith("every"):
            continue
        assert attrs.get("id"), tag
        assert attrs["hx-swap"] == "outerMorph"
        assert "hx-ptag" in attrs
        assert tag not in {"form", "body", "main"}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_what_htmx_does_works_without_it(template: Path) -> None:
    """A link keeps its href, a form its action and method; nothing else is clicked or sent."""
    for tag, attrs in read(template):
        if "hx-post" in attrs:
            assert tag == "form"
            assert attrs["method"] == "post"
            assert attrs["action"] == attrs["hx-post"]
        if "hx-get" in attrs and tag in {"a", "button", "form"}:
            assert tag == "a"
            assert attrs["href"] == attrs["hx-get"]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_form_that_writes_carries_a_token(template: Path) -> None:
    text = template.read_text()
    forms = re.findall(r"<form\b[^>]*>.*?</form>", text, re.DOTALL)
    assert len(forms) == text.count("<form")
    for form in forms:
        assert ('method="post"' in form) == ("{% csrf_token %}" in form)


def test_htmx_is_told_what_the_pages_rely_on() -> None:
    text = (ROOT / "templates/dashboard/base.html").read_text()
    assert '"extensions":"ptag"' in text
    assert '"morphIgnore":["data-htmx-powered","open"]' in text
    assert '"noSwap":[204,304,401,403,404,412,"5xx"]' in text


def test_the_vendored_scripts_are_the_ones_on_record() -> None:
    record = (VENDORED / "README.md").read_text()
    scripts = sorted(VENDORED.glob("*.js"))
    assert len(scripts) == 2
    for script in scripts:
        assert hashlib.sha256(script.read_bytes()).hexdigest() in record
        assert f"vendor/{script.name}" in (ROOT / "templates/dashboard/base.html").read_text()


def test_every_glyph_that_a_page_names_is_drawn() -> None:
    sheet = (ROOT / "templates/dashboard/_icons.html").read_text()
    drawn = set(re.findall(r'id="([is]-[a-z]+)"', sheet))
    sources = [*TEMPLATES, *(ROOT / "dashboard").rglob("*.py")]
    text = "".join(path.read_text() for path in sources)
    named = {f"i-{name}" for name in re.findall(r'{% icon "([a-z]+)" %}', text)}
    named |= {f"s-{name}" for name in re.findall(r'{% glyph "([a-z]+)" %}', text)}
    named |= {f"s-{name}" for name in re.findall(r'Look\("[^"]+", "([a-z]+)"', text)}
    assert len(named) > 20
    assert named - drawn == set()


def test_every_class_of_the_stylesheet_is_used() -> None:
    """A rule for what no page has is a rule that nobody dares to remove."""
    sheet = re.sub(r"/\*.*?\*/", "", (ROOT / "static/longwatch.css").read_text(), flags=re.DOTALL)
    selectors = " ".join(re.findall(r"([^{};]+){", sheet))
    sources = [*TEMPLATES, *(ROOT / "dashboard").rglob("*.py"), ROOT / "static/longwatch.js"]
    words = set(re.findall(r"[\w-]+", "".join(path.read_text() for path in sources)))
    unused = {name for name in re.findall(r"\.([a-z][\w-]*)", selectors) if name not in words}
    assert unused == set()


def test_the_scripts_come_in_an_order_that_no_network_changes() -> None:
    """A deferred htmx starts a moment after it runs, without an extension that is still loading."""
    text = (ROOT / "templates/dashboard/base.html").read_text()
    scripts = re.findall(r"<script [^>]*>", text)
    assert [("htmx" in one, "ptag" in one, "longwatch" in one) for one in scripts] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert not any(word in one for one in scripts for word in ("defer", "async"))
    assert text.index("<script") > text.index('id="announce"')
