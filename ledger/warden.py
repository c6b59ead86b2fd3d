"""A script: runs one command it does not trust, within limits, and leaves nothing of it running.

`ledger.sandbox` starts it as `python -I -S -B warden.py SPEC` in a session of its own, with a clean
environment and a pipe as standard input. A byte on it begins the command. It ends when the command
ends, when the deadline is over, or when the pipe closes, which says that the process that asked is
gone, however it went; then it removes the folder that the command ran in.

Where the kernel allows, the command gets namespaces: no network, and no sight of other processes,
whose environment it could otherwise read below /proc. The first line on the report's descriptor
says what held. Elsewhere than on Linux the limits alone remain.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 28, 36, 38
NO_CAPABILITIES_FOR_ROOT = 0x3  # SECBIT_NOROOT and its lock: exec gives uid 0 nothing
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
TIMED_OUT, BROKEN = 124, 125
BEGIN = b"!"
POLL = 0.02
COUNT_TICKS = 5
CLEAN_UP_SECONDS = 10.0

LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)


def main(spec: dict[str, Any]) -> int:
    """Run `spec["command"]` to its end and return its exit code (128 + N: ended by signal N)."""
    signal.signal(signal.SIGTERM, _end)
    try:
        if os.read(0, 1) != BEGIN:
            return TIMED_OUT
        deadline = time.monotonic() + spec["seconds"]
        held = _enter_namespaces(spec["network"]) if spec["isolate"] and LINUX else set()
        if LINUX:
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what loses its parent becomes ours
        inner = os.fork()
        if not inner:
            _run_inner(spec, held)
        return _wait(inner, deadline, spec["processes"])
    finally:
        _kill_all()
        _remove(spec["scratch"])


def _end(signum: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(TIMED_OUT)  # by way of cleaning up


def _wait(inner: int, deadline: float, processes: int) -> int:
    for tick in itertools.count():
        ended, status = os.waitpid(inner, os.WNOHANG)
        if ended:
            return _exit_code(status)
        if time.monotonic() >= deadline or select.select([0], [], [], POLL)[0]:
            os.kill(inner, signal.SIGKILL)
            return TIMED_OUT
        # The kernel's own limit is not for root.
        if os.geteuid() == 0 and tick % COUNT_TICKS == 0 and _count_below(inner) > processes:
            os.write(2, b"\n[ended here: more than %d processes]\n" % processes)
            os.kill(inner, signal.SIGKILL)
            return 128 + signal.SIGKILL
    raise AssertionError("time has ended")


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _enter_namespaces(keep_network: bool) -> set[str]:
    """Leave the network and the machine's processes behind. Returns what worked."""
    network, cut = (0, set()) if keep_network else (os.CLONE_NEWNET, {"network"})
    ways = [(network | os.CLONE_NEWPID | os.CLONE_NEWIPC, cut | {"processes"}), (network, cut)]
    for user in (0, os.CLONE_NEWUSER) if os.geteuid() == 0 else (os.CLONE_NEWUSER,):
        for flags, held in ways:
            if _can_unshare(flags | user):
                _unshare(flags | user)
                return held
    return set()


def _can_unshare(flags: int) -> bool:
    """Try it in a child: one that fails half-way would leave this process nobody's."""
    child = os.fork()
    if not child:
        try:
            _unshare(flags)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _unshare(flags: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(flags)
    if flags & os.CLONE_NEWUSER:
        texts = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, text in texts.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    if flags & os.CLONE_NEWNET:
        _raise_loopback()


def _raise_loopback() -> None:
    """Tests may talk to themselves, and the loopback of a new network is down."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def _run_inner(spec: dict[str, Any], held: set[str]) -> NoReturn:
    """In the child, which is the first process of the new namespaces."""
    try:
        if LINUX:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if "processes" in held:
            if not _mount_own_proc():
                held.discard("processes")
            elif False not in [_hide(path) for path in spec["hide"]]:
                held.add("files")
        os.write(spec["report"], json.dumps({"held": sorted(held)}).encode() + b"\n")
        command = os.fork()
        if not command:
            _become(spec)
        while True:
            # A process namespace ends with its first process: the kernel kills the rest.
            ended, status = os.wait()
            if ended == command:
                os._exit(_exit_code(status))
    except BaseException as error:
        os.write(2, f"the sandbox failed: {error!r}\n".encode())
    finally:
        os._exit(BROKEN)


def _mount_own_proc() -> bool:
    """In mounts of our own, put a /proc that shows this namespace alone in place of the other."""
    try:
        os.unshare(os.CLONE_NEWNS)
    except OSError:
        return False
    return _mount("none", "/", None, MS_REC | MS_PRIVATE) and _mount(
        "proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC
    )


def _hide(path: str) -> bool:
    """Put nothing in the place of a folder or a file."""
    if os.path.isdir(path):
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
        return _mount("none", path, "tmpfs", flags, "size=4k,mode=0555")
    return not os.path.exists(path) or _mount(os.devnull, path, None, MS_BIND)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> bool:
    done: int = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode(),
    )
    return done == 0


def _become(spec: dict[str, Any]) -> NoReturn:
    """Turn into the command: give up what root could do, set the limits, exec."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(os.path.join(spec["folder"], spec["cwd"]))
    if LINUX:
        _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if not spec["jailer"]:  # which needs what root may do, to take it from its own command
            _libc.prctl(PR_SET_SECUREBITS, NO_CAPABILITIES_FOR_ROOT, 0, 0, 0)
    for name, value in spec["limits"].items():
        kind = getattr(resource, name, None)
        if kind is not None:
            most = resource.getrlimit(kind)[1]
            bound = value if most == resource.RLIM_INFINITY else min(value, most)
            with contextlib.suppress(ValueError, OSError):  # macOS has RLIMIT_AS and refuses it
                resource.setrlimit(kind, (bound, bound))
    os.execve(spec["command"][0], spec["command"], spec["environment"])


def _kill_all() -> None:
    """Kill the command's processes and wait for them, also those that left its session.

    In a process namespace the first kill ends all. Without one, what loses its parent becomes our
    child, so killing our children until none is left ends all too.
    """
    give_up = time.monotonic() + CLEAN_UP_SECONDS
    while time.monotonic() < give_up:
        for pid in _list_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _list_children() -> set[int]:
    return _read_families().get(os.getpid(), set())


def _count_below(pid: int) -> int:
    """How many processes descend from it."""
    families, found = _read_families(), [pid]
    for one in found:
        found += families.get(one, ())
    return len(found) - 1


def _read_families() -> dict[int, set[int]]:
    """The machine's processes by their parent."""
    found: dict[int, set[int]] = {}
    for name in os.listdir("/proc") if LINUX else ():
        if name.isdigit():
            # Gone meanwhile: no file, or no such process at the read.
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # pid (name, which may hold anything) state parent …
                parent = int(file.read().rpartition(b")")[2].split()[1])
                found.setdefault(parent, set()).add(int(name))
    return found


def _remove(folder: str) -> None:
    """Remove the folder, also what the command closed to us."""
    for base, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(base, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
