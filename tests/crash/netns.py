"""Hosts of a test's own: network namespaces, each with a line to the one in which the database is.

Addresses, links and names exist inside of them alone. A thread enters one, and what it starts or
connects meanwhile stays there; its host name is the namespace's as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

NAMES = Path("/run/netns")
NOWHERE = "02:00:00:00:00:99"
"""No card has this address, so nobody takes in what is sent to it, and nobody says so."""

NETWORK = "10.213.0.0/16"


def find_lack() -> str:
    """What this machine lacks for namespaces, in words that name the cure; empty if nothing."""
    if shutil.which("ip") is None:
        return "no `ip` here: apt install iproute2"
    name = f"lw-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=30)
    if made.returncode:
        return f"no network namespaces here, they need root: {made.stderr.strip()[:100]}"
    run_ip("netns", "del", name)
    return ""


def run_ip(*arguments: str) -> None:
    """`ip` with these arguments; raises what it says."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr}")


class Network:
    """The database's namespace and those of hosts. Leaving the block removes all of them."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self._names = {host: f"lw-{os.getpid()}-{host}" for host in ("db", *hosts)}

    def __enter__(self) -> Self:
        try:
            self._clear_dead()
            for host in self._names:
                run_ip("netns", "add", self._names[host])
                self._ip(host, "link", "set", "lo", "up")
            for number, host in enumerate(self.hosts, 1):
                self._join(host, number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for name in self._names.values():
            with contextlib.suppress(RuntimeError):
                run_ip("netns", "del", name)

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """This thread is on the host meanwhile."""
        with contextlib.ExitStack() as stack:
            here = [(kind, os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY))
                    for kind in ("net", "uts")]  # fmt: skip
            for kind, home in here:
                stack.callback(os.close, home)
                stack.callback(os.setns, home, getattr(os, f"CLONE_NEW{kind.upper()}"))
            there = os.open(NAMES / self._names[host], os.O_RDONLY)
            stack.callback(os.close, there)
            os.setns(there, os.CLONE_NEWNET)
            os.unshare(os.CLONE_NEWUTS)
            socket.sethostname(f"host-{host}")
            yield

    def find_database(self, host: str) -> str:
        """The database's address, as the host knows it."""
        return f"10.213.{self.hosts.index(host) + 1}.1"

    def find_address(self, host: str) -> str:
        """The host's address."""
        return f"10.213.{self.hosts.index(host) + 1}.2"

    def silence(self, host: str) -> None:
        """From now on nothing passes between host and database, and neither is told."""
        self._aim(host, "replace", "lladdr", NOWHERE, "nud", "permanent")

    def hear(self, host: str) -> None:
        """What is sent arrives again."""
        self._aim(host, "del")

    def take_down(self, host: str) -> None:
        """The host's cable is pulled."""
        self._ip(host, "link", "set", "eth0", "down")

    def put_up(self, host: str) -> None:
        """And put in again."""
        self._ip(host, "link", "set", "eth0", "up")

    def _join(self, host: str, number: int) -> None:
        there = ["peer", "name", f"eth{number}", "netns", self._names["db"]]
        run_ip("link", "add", "eth0", "netns", self._names[host], "type", "veth", *there)
        self._ip(host, "addr", "add", f"10.213.{number}.2/24", "dev", "eth0")
        self._ip("db", "addr", "add", f"10.213.{number}.1/24", "dev", f"eth{number}")
        self._ip(host, "link", "set", "eth0", "up")
        self._ip("db", "link", "set", f"eth{number}", "up")

    def _aim(self, host: str, what: str, *how: str) -> None:
        """Where both ends believe the other's card to be."""
        card = f"eth{self.hosts.index(host) + 1}"
        self._ip(host, "neigh", what, self.find_database(host), "dev", "eth0", *how)
        self._ip("db", "neigh", what, self.find_address(host), "dev", card, *how)

    def _ip(self, host: str, *arguments: str) -> None:
        run_ip("-n", self._names[host], *arguments)

    def _clear_dead(self) -> None:
        """What tests left that were killed."""
        for file in NAMES.glob("lw-*-*"):
            if not Path("/proc", file.name.split("-")[1]).exists():
                run_ip("netns", "del", file.name)
