"""A script: runs one command it does not trust, within limits, and leaves nothing of it running.

`sandbox.py` starts it as `python -I -S -B warden.py SPEC` in a session of its own, with a clean
environment and one pipe as standard input. It ends when the command ends, when the deadline is
over, or when the pipe closes, which says that the process that asked is gone, however it went.

Where the kernel allows, the command gets namespaces: no network, and no sight of other processes,
whose environment it could otherwise read below /proc. What was held is the first line on the
report's descriptor. Everything here is plain Linux; elsewhere the limits alone remain.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
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
from typing import Any

PR_SET_PDEATHSIG, PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 28, 36, 38
NO_CAPABILITIES_FOR_ROOT = 0x3  # SECBIT_NOROOT and its lock: exec gives uid 0 nothing
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 0x40000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
TIMED_OUT = 124
POLL = 0.02
CLEAN_UP_SECONDS = 10.0

LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)


def main(spec: dict[str, Any]) -> int:
    """Run `spec["command"]` to its end and return its exit code (128 + N: ended by signal N)."""
    deadline = time.monotonic() + spec["seconds"]
    held = _enter_namespaces() if spec["isolate"] and LINUX else set()
    if LINUX:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what its parent leaves behind is ours
    inner = os.fork()
    if not inner:
        _run_inner(spec, held)
    try:
        return _wait(inner, deadline)
    finally:
        _kill_all(inner)
        shutil.rmtree(spec["scratch"], onexc=_make_removable)


def _wait(inner: int, deadline: float) -> int:
    while True:
        ended, status = os.waitpid(inner, os.WNOHANG)
        if ended:
            return _exit_code(status)
        if time.monotonic() >= deadline:
            return TIMED_OUT
        if select.select([0], [], [], POLL)[0]:
            return TIMED_OUT  # the pipe closed; nobody will read this


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _enter_namespaces() -> set[str]:
    """Leave the network and the machine's processes behind. Returns what worked."""
    user = 0 if os.geteuid() == 0 else os.CLONE_NEWUSER
    uid, gid = os.geteuid(), os.getegid()
    wanted = os.CLONE_NEWNET | os.CLONE_NEWPID | os.CLONE_NEWNS | os.CLONE_NEWIPC
    for flags, held in ((wanted, {"network", "processes"}), (os.CLONE_NEWNET, {"network"})):
        try:
            os.unshare(flags | user)
            if user:
                _map_user(uid, gid)
            _raise_loopback()
            return held
        except OSError:
            continue
    return set()


def _map_user(uid: int, gid: int) -> None:
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{file}", "w") as out:
            out.write(text)


def _raise_loopback() -> None:
    """Tests may talk to themselves: a new network has its loopback down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, contextlib.suppress(OSError):
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def _run_inner(spec: dict[str, Any], held: set[str]) -> None:
    """In the child, which is the first process of the new namespaces. Never returns."""
    try:
        if LINUX:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if "processes" in held:
            if not _mount_own_proc():
                held.discard("processes")
            elif all([_hide_folder(folder) for folder in spec["hide"]]):
                held.add("files")
        os.write(spec["report_fd"], json.dumps({"held": sorted(held)}).encode() + b"\n")
        command = os.fork()
        if not command:
            _become(spec)
        while True:
            # The kernel ends everything in a process namespace with its first process.
            ended, status = os.wait()
            if ended == command:
                os._exit(_exit_code(status))
    except BaseException as error:
        os.write(2, f"the sandbox failed: {error!r}\n".encode())
    finally:
        os._exit(125)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> bool:
    texts = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    return _libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]) == 0


def _mount_own_proc() -> bool:
    _mount("none", "/", None, MS_REC | MS_PRIVATE)  # nothing below may reach the machine's mounts
    return _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _hide_folder(folder: str) -> bool:
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    return not os.path.isdir(folder) or _mount("none", folder, "tmpfs", flags, "size=4k,mode=0555")


def _become(spec: dict[str, Any]) -> None:
    """Turn into the command: limits first, then what root could do, then exec."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.chdir(spec["folder"])
    if LINUX:
        _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _libc.prctl(PR_SET_SECUREBITS, NO_CAPABILITIES_FOR_ROOT, 0, 0, 0)
    for name, value in spec["limits"].items():
        kind = getattr(resource, name, None)
        if kind is not None:
            most = resource.getrlimit(kind)[1]
            bound = value if most == resource.RLIM_INFINITY else min(value, most)
            with contextlib.suppress(ValueError, OSError):  # macOS knows RLIMIT_AS, takes it not
                resource.setrlimit(kind, (bound, bound))
    os.execve(spec["command"][0], spec["command"], spec["environment"])


def _kill_all(inner: int) -> None:
    """Kill the command's processes and wait for them, also those that left its session.

    In a process namespace the first kill ends all. Without one, what loses its parent becomes our
    child, so killing our children until none is left ends all too.
    """
    give_up = time.monotonic() + CLEAN_UP_SECONDS
    targets = {inner}
    while time.monotonic() < give_up:
        for pid in targets | _list_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        targets = set()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _list_children() -> set[int]:
    me, found = os.getpid(), set()
    for name in os.listdir("/proc") if LINUX else ():
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # pid (name, which may hold anything) state parent …
                if int(file.read().rpartition(b")")[2].split()[1]) == me:
                    found.add(int(name))
    return found


def _make_removable(function: Any, path: str, error: BaseException) -> None:
    """A folder that the command closed to us is opened and tried once more."""
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)
        os.chmod(path, 0o700, follow_symlinks=False) if os.path.islink(path) else os.chmod(path, 0o700)
        if function is os.rmdir or not os.path.isdir(path):
            function(path)
        else:
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
