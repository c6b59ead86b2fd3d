"""The tools that ask declared hosts: `http_get`, and `http_send` where writing is allowed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urljoin

from pydantic_ai.exceptions import ToolFailed

from ledger.agents.kits.fetching import (
    SECRET,
    Answer,
    Host,
    NotSent,
    Target,
    find_target,
    send_request,
)
from ledger.agents.kits.toolkit import Toolkit, make_tool
from ledger.agents.recording import call_key, find_unit
from ledger.agents.rules import Args, Tool

MAX_HOPS: Final = 5
MAX_BODY: Final = 1024**2
MAX_TEXT: Final = 40_000
"""Characters of an answer that the model is shown."""

SHOWN: Final = ("Content-Type", "Location", "Retry-After")
REDIRECTS: Final = {301, 302, 303, 307, 308}


def http_tools(
    hosts: Sequence[Host | str], *, timeout: float = 30.0, idempotent: bool = False
) -> Toolkit:
    """Tools that ask the named hosts: `http_get`, and `http_send` if one allows another method.

    A name alone is `Host(name)`: GET over https. A host's name is looked up once for each request,
    and every address must be a public one unless it is `private`. Redirects of `http_get` are
    followed while they stay in scope. `http_send` sends an Idempotency-Key; where all hosts know
    those, say `idempotent=True`, else people are asked about a request of unknown outcome.
    Raises ValueError.
    """
    if isinstance(hosts, str) or not hosts:
        raise ValueError(f"http_tools(): takes a list of hosts, not {hosts!r}")
    known = [one if isinstance(one, Host) else Host(one) for one in hosts]
    if timeout <= 0:
        raise ValueError("http_tools(timeout=): takes seconds")
    web = _Web(known, timeout)
    tools, rules = [], {}
    if any("GET" in one.methods for one in known):
        tools.append(make_tool(web.http_get))
        rules["http_get"] = Tool(idempotent=True, scope=functools.partial(web.refuse, "GET"))
    if any(set(one.methods) - {"GET"} for one in known):
        tools.append(make_tool(web.http_send))
        rules["http_send"] = Tool(idempotent=idempotent, scope=functools.partial(web.refuse, None))
    return Toolkit(tools, rules, web.describe())


@dataclasses.dataclass(frozen=True)
class _Web:
    """The tools; their docstrings are what the model is told."""

    hosts: list[Host]
    timeout: float

    def http_get(self, url: str, accept: str = "*/*") -> str:
        """Fetch an address: its status, type and text.

        Args:
            url: The whole address, of a host that the instructions name.
            accept: The types of content to ask for.
        """
        headers = {"Accept": _check_value("accept", accept)}
        for _ in range(MAX_HOPS):
            target = self._find("GET", url)
            try:
                answer = send_request(
                    target, "GET", self._dress(target, headers), None, self.timeout
                )
            except (NotSent, OSError) as error:
                raise ToolFailed(f"{error}.") from None
            leads = answer.headers.get("Location")
            if answer.status not in REDIRECTS or leads is None:
                return _show(answer)
            url = urljoin(target.url, leads)
        raise ToolFailed(f"More than {MAX_HOPS} redirects; the last led to {url[:200]!r}.")

    def http_send(
        self, method: str, url: str, body: str = "", content_type: str = "application/json"
    ) -> str:
        """Send a request that changes something: its status, type and text. Redirects are not
        followed.

        Args:
            method: POST, PUT, PATCH or DELETE.
            url: The whole address, of a host that the instructions name.
            body: What to send.
            content_type: Its type.
        """
        target = self._find(method, url)
        content = body.encode("utf-8", "replace")
        if len(content) > MAX_BODY:
            raise ToolFailed(f"The body has more than {MAX_BODY:,} bytes.")
        headers = {"Content-Type": _check_value("content_type", content_type)}
        headers["Idempotency-Key"] = quote(call_key(), safe=":._-")
        try:
            answer = send_request(
                target, method, self._dress(target, headers), content, self.timeout
            )
        except NotSent as error:  # any other error leaves open what came of it, and passes
            raise ToolFailed(f"{error}.") from None
        return _show(answer)

    def refuse(self, method: str | None, args: Args) -> str:
        """Why a call is out of scope, for the rules."""
        try:
            find_target(self.hosts, method or str(args.get("method")), str(args.get("url")))
        except NotSent as error:
            return str(error)
        return ""

    def describe(self) -> str:
        """What the model is told of the kit."""
        return f"The http tools may ask: {', '.join(map(str, self.hosts))}."

    def _find(self, method: str, url: str) -> Target:
        try:
            return find_target(self.hosts, method, url)
        except NotSent as error:
            raise ToolFailed(f"{error}.") from None

    def _dress(self, target: Target, headers: dict[str, str]) -> dict[str, str]:
        """The headers with the host's own, its secrets filled in."""
        ctx = find_unit()
        own = {
            name: SECRET.sub(lambda found: ctx.secret(found[1]), value)
            for name, value in target.host.headers.items()
        }
        return {**headers, **own}


def _check_value(name: str, value: str) -> str:
    if not value.isascii() or not value.isprintable() or len(value) > 200:
        raise ToolFailed(f"{name}: {value[:50]!r} can't be sent.")
    return value


def _show(answer: Answer) -> str:
    told = [f"{name}: {value}" for name in SHOWN if (value := answer.headers.get(name))]
    head = [f"[{answer.status} {answer.reason}]", *told]
    size = f"{len(answer.content):,} bytes{' and more' if answer.cut else ''}"
    if not answer.content:
        return "\n".join(head)
    coded = answer.headers.get("Content-Encoding", "identity") != "identity"
    if coded or b"\0" in answer.content[:8192]:
        return "\n".join([*head, f"[{size} that are no text]"])
    charset = answer.headers.get_content_charset("utf-8")
    try:
        text = answer.content.decode(charset, "replace")
    except LookupError:
        text = answer.content.decode("utf-8", "replace")
    text = text.replace("\0", "")
    if len(text) > MAX_TEXT or answer.cut:
        text = f"{text[:MAX_TEXT]}\n[cut; in all {size}]"
    return "\n".join([*head, "", text])
