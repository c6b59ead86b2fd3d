"""One request to a declared host: its name is looked up once, and what it leads to is checked.

What was checked is what is connected to, so a resolver that changes its mind changes nothing. No
proxy is used and no redirect followed in here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

MAX_BYTES: Final = 2 * 1024**2
"""Bytes of an answer that are read."""

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
SECRET: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
NAT64: Final = ipaddress.ip_network("64:ff9b::/96")

_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|[0-9a-f:.]+")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_TARGET = "/%:@!$&'()*+,;=~-._?[]"


class NotSent(Exception):
    """The request was not made, and the message says why."""


@dataclasses.dataclass(frozen=True)
class Host:
    """A host that may be asked, over https unless `scheme` says otherwise.

    `name` as it stands in addresses, or `*.example.org` for all below. `headers` go to no other
    host; `{NAME}` in one is the secret of that name. An address of a private network, this machine
    or the link is refused unless `private` says that the host lies there. Raises ValueError.
    """

    name: str
    methods: Sequence[str] = ("GET",)
    scheme: Literal["https", "http"] = "https"
    port: int | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    private: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"Host: {self.name!r} is no name of a host, in small letters")
        if isinstance(self.methods, str) or not set(self.methods) <= set(METHODS):
            raise ValueError(f"Host(methods=): takes some of {', '.join(METHODS)}")
        if self.scheme not in {"https", "http"}:
            raise ValueError(f"Host(scheme=): {self.scheme!r} is neither https nor http")
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name) or not value.isprintable() or not value.isascii():
                raise ValueError(f"Host(headers=): {name!r} can't be sent")

    @property
    def number(self) -> int:
        """Its port."""
        return self.port or (443 if self.scheme == "https" else 80)

    def write_authority(self, name: str) -> str:
        """How an address of it names the host: with its port where the scheme's is another."""
        host = f"[{name}]" if ":" in name else name
        usual = self.number == (443 if self.scheme == "https" else 80)
        return host if usual else f"{host}:{self.number}"

    def __str__(self) -> str:
        """What a model is told that it may ask."""
        return f"{' '.join(self.methods)} {self.scheme}://{self.write_authority(self.name)}"

    def fits(self, name: str) -> bool:
        """Whether an address names it."""
        if self.name.startswith("*."):
            return name.endswith(self.name[1:])
        return name == self.name


@dataclasses.dataclass(frozen=True)
class Target:
    """An address that is in scope: the host's declaration, its name, and the path there."""

    host: Host
    name: str
    path: str

    @property
    def url(self) -> str:
        """The address as it is asked for."""
        return f"{self.host.scheme}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """What the header Host says."""
        return self.host.write_authority(self.name)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came back; `cut` if there was more of it."""

    status: int
    reason: str
    headers: http.client.HTTPMessage
    content: bytes
    cut: bool


def find_target(hosts: Sequence[Host], method: str, url: str) -> Target:
    """Where an address leads. Raises NotSent for one out of scope, naming what is in it."""
    cure = f"what may be asked is: {', '.join(map(str, hosts))}"
    try:
        parts = urlsplit(url)
        name, port = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise NotSent(f"{url[:200]!r} is no address ({error}); {cure}") from None
    if "@" in parts.netloc:
        raise NotSent(f"an address must not hold a name or password; {cure}")
    for host in hosts:
        usual = 443 if parts.scheme == "https" else 80
        same = (parts.scheme, usual if port is None else port) == (host.scheme, host.number)
        if same and host.fits(name) and method in host.methods:
            path = quote(parts.path or "/", safe=_TARGET)
            query = f"?{quote(parts.query, safe=_TARGET)}" if parts.query else ""
            return Target(host, name, path + query)
    raise NotSent(f"{method} {url[:200]!r} is out of scope; {cure}")


def send_request(
    target: Target, method: str, headers: Mapping[str, str], body: bytes | None, seconds: float
) -> Answer:
    """Ask, within so many seconds in all.

    Raises NotSent before anything was sent, and OSError once that may be.
    """
    with _Line(seconds) as line:
        try:
            line.connect(target)
        except (OSError, ValueError) as error:
            raise NotSent(f"{target.name} can't be reached: {line.explain(error)}") from None
        try:
            return line.ask(target, method, headers, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise OSError(f"{target.name} gave no answer: {line.explain(error)}") from error


def find_addresses(target: Target) -> list[tuple[int, Any]]:
    """Family and address of all that the name leads to, checked. Raises NotSent, OSError."""
    found = socket.getaddrinfo(target.name, target.host.number, type=socket.SOCK_STREAM)
    if not target.host.private:
        for address in (str(one[4][0]) for one in found):
            if not is_public(address):
                raise NotSent(f"{target.name} leads to {address}, which is no public address")
    return [(one[0], one[4]) for one in found]


def is_public(address: str) -> bool:
    """Whether an address belongs to the open network, also one that wraps another."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
        if ip in NAT64:
            inner.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
        if not all(is_public(str(one)) for one in inner if one is not None):
            return False
    return ip.is_global and not ip.is_multicast


class _Line:
    """A connection that ends with its time, however slowly its other end speaks."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ends = time.monotonic() + seconds
        self.timed_out = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Line:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._socket is not None:
            self._socket.close()

    def _end(self) -> None:
        self.timed_out = True
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if self._socket is not None:
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not TLS's own, which reads

    def explain(self, error: Exception) -> str:
        """What went wrong, in a few words."""
        if self.timed_out or isinstance(error, TimeoutError):
            return f"it took over {self.seconds:g} s"
        return str(error) or type(error).__name__

    def connect(self, target: Target) -> None:
        """Connect to one of the addresses that were checked."""
        fault: OSError | None = None
        for family, address in find_addresses(target):
            self._socket = tried = socket.socket(family, socket.SOCK_STREAM)
            try:
                tried.settimeout(max(0.01, self.ends - time.monotonic()))
                tried.connect(address)
                break
            except OSError as error:
                fault = error
                tried.close()
        else:
            raise fault or OSError("it has no address")
        if target.host.scheme == "https":
            context = ssl.create_default_context()
            self._socket = tls = context.wrap_socket(
                self._socket, server_hostname=target.name, do_handshake_on_connect=False
            )
            tls.do_handshake()
        if self.timed_out:  # while the name was looked up, so nothing would end what follows
            raise TimeoutError

    def ask(
        self, target: Target, method: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        """One request and its answer."""
        asked = http.client.HTTPConnection(target.name, target.host.number)
        asked.sock = self._socket
        sent = {"Host": target.authority, "Accept-Encoding": "identity", "Connection": "close"}
        asked.request(method, target.path, body, {**sent, **headers})
        answer = asked.getresponse()
        content = b"".join(_read_some(answer))
        if self.timed_out:
            raise TimeoutError
        more = len(content) > MAX_BYTES
        return Answer(answer.status, answer.reason, answer.msg, content[:MAX_BYTES], more)


def _read_some(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    room = MAX_BYTES + 1
    while room > 0 and (block := answer.read(min(room, 65_536))):
        room -= len(block)
        yield block
