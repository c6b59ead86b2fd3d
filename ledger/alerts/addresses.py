"""Where an alert may be sent: to the open internet, and to networks that the settings name.

Whoever may write a rule must not reach what only this machine can reach: a database, a metadata
service, another user's port. So every address of a name is looked at, and the connection goes to
an address that was looked at; the name is not resolved a second time.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

SETTING: Final = "LONGWATCH_ALERT_NETWORKS"

type Network = ipaddress.IPv4Network | ipaddress.IPv6Network
type Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_GIVEN_OUT: Final = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is; `is_global` also takes what once was for sites, and unused ways to write an
IPv4 address."""

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class AddressRefused(Exception):
    """A host that alerts may not be sent to; the message names the cure."""


def load_networks() -> list[Network]:
    """The private networks that the settings allow. Raises ImproperlyConfigured."""
    try:
        return [ipaddress.ip_network(text) for text in getattr(settings, SETTING, ())]
    except ValueError as error:
        raise ImproperlyConfigured(
            f"{SETTING}: {error}; write networks such as 10.0.0.0/8,127.0.0.1/32."
        ) from None


def find_addresses(host: str, port: int) -> list[tuple[Any, ...]]:
    """What `socket.getaddrinfo` finds for a TCP connection, every address of it allowed.

    Raises AddressRefused, or OSError when there is no such name.
    """
    found = _resolve(host, port, 0, socket.SOCK_STREAM)
    check_addresses(host, found)
    return found


def check_addresses(host: str, found: list[tuple[Any, ...]]) -> None:
    """Raise AddressRefused unless every one is allowed: one private address spoils the name."""
    allowed = load_networks()
    for *_, address in found:
        ip = _unwrap(ipaddress.ip_address(str(address[0]).partition("%")[0]))
        if ip.is_global and not ip.is_multicast and (ip.version == 4 or ip in _GIVEN_OUT):
            continue
        if not any(ip in network for network in allowed):
            named = host if host == str(ip) else f"{host} is {ip}, which"
            raise AddressRefused(
                f"{named} is no address of the open internet. If alerts may go "
                f"there, add its network to {SETTING}."
            )


def guard_lookups() -> None:
    """From now on this process resolves nothing that is not allowed. For a process that lives for
    one delivery and whose library makes its own connections."""

    def resolve_checked(host: Any, *args: Any, **options: Any) -> Any:
        found = _resolve(host, *args, **options)
        check_addresses(str(host), found)
        return found

    socket.getaddrinfo = resolve_checked


_resolve = socket.getaddrinfo


def _unwrap(ip: Address) -> Address:
    """The IPv4 address inside an IPv6 one that only stands for it."""
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None, None))[1]
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        return inner or ip
    return ip
