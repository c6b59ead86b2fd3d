"""The poisons: each is a function that a step calls, with what must come of it.

`Expected` is how the task ends: its status, its reason, the error's type and a part of its text.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import multiprocessing
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

from django.db import connection

from ledger.workflows import Again


class Expected(NamedTuple):
    """How the task must end."""

    status: str
    reason: str
    error: str = ""
    text: str = ""


class Poison(NamedTuple):
    """What the step does, and what must come of it."""

    do: Callable[[Any], Any]
    expected: Expected


POISONS: dict[str, Poison] = {}

FAILED = ("dead", "retries_exhausted")
LOST = ("dead", "reclaims_exhausted", "WorkerLost")
UNSTORABLE = ("dead", "unserialisable_output", "Unserialisable")
DONE = Expected("completed", "")


def poison[F: Callable[[Any], Any]](*expected: str) -> Callable[[F], F]:
    """Take the function in under its own name."""

    def take(do: F) -> F:
        POISONS[do.__name__] = Poison(do, Expected(*expected))
        return do

    return take


# --- The process ends -----------------------------------------------------------------------------


@poison(*LOST, "exit status 0, as by os._exit()")
def ends_the_process_as_if_well(ctx: Any) -> Any:
    os._exit(0)


@poison(*LOST, "exit status 3, as by os._exit()")
def ends_the_process(ctx: Any) -> Any:
    os._exit(3)


@poison(*LOST, "SIGSEGV")
def crashes_in_native_code(ctx: Any) -> Any:
    ctypes.string_at(0)


@poison(*LOST, "SIGKILL): by the kernel for want of memory, or by hand")
def is_killed(ctx: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@poison(*LOST, "SIGXCPU")
def uses_up_its_processor_time(ctx: Any) -> Any:
    resource.setrlimit(resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))
    while True:
        pass


@poison(*LOST, "closed the worker's own files")
def closes_all_files(ctx: Any) -> Any:
    os.closerange(3, 4096)


# --- The unit does not end ------------------------------------------------------------------------


@poison(*FAILED, "UnitTimeout", "longer than 1 s")
def loops_in_python(ctx: Any) -> Any:
    while True:
        pass


@poison(*FAILED, "UnitTimeout", "longer than 1 s")
def backtracks_in_a_regular_expression(ctx: Any) -> Any:
    re.match(r"(a+)+$", "a" * 60 + "b")


@poison(*FAILED, "UnitTimeout", "longer than 1 s")
def waits_for_a_lock_that_it_holds(ctx: Any) -> Any:
    lock = threading.Lock()
    with lock:
        lock.acquire()


@poison(*FAILED, "UnitTimeout", "longer than 1 s")
def reads_a_socket_that_never_answers(ctx: Any) -> Any:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as client:
        client.recv(1)


@poison(*FAILED, "UnitTimeout", "would not be stopped")
def swallows_every_stop(ctx: Any) -> Any:
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass


@poison(*LOST, "stuck in native code that keeps the interpreter's lock")
def loops_in_c_with_the_interpreter_lock(ctx: Any) -> Any:
    while True:
        sum(range(10**12))


# --- What it raises -------------------------------------------------------------------------------


class Base(BaseException):
    """No Exception."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Hanging(Exception):
    def __str__(self) -> str:
        while True:
            time.sleep(0.01)


class TwoArguments(Exception):
    """Can be pickled, but not read back."""

    def __init__(self, one: Any, two: Any) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


def nest_groups(depth: int) -> Exception:
    error: Exception = ValueError("innermost")
    for _ in range(depth):
        error = ExceptionGroup("a group", [error])
    return error


def make_cycle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def recurse() -> None:
    recurse()


RAISED: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "SystemExit": (SystemExit, "SystemExit", ""),
    "SystemExit 0": (lambda: SystemExit(0), "SystemExit", "0"),
    "SystemExit text": (lambda: SystemExit("enough"), "SystemExit", "enough"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt", ""),
    "GeneratorExit": (GeneratorExit, "GeneratorExit", ""),
    "CancelledError": (asyncio.CancelledError, "CancelledError", ""),
    "of one's own": (lambda: Base("bare"), "Base", "bare"),
    "NUL": (lambda: ValueError("a\x00b"), "ValueError", "a\\x00b"),
    "lone surrogate": (lambda: ValueError("a\ud800b"), "ValueError", "a\\ud800b"),
    "bytes": (lambda: ValueError(b"\xff\xfe"), "ValueError", "b'\\xff\\xfe'"),
    "50 MB": (lambda: ValueError("x" * 50_000_000), "ValueError", "characters"),
    "unprintable": (Unprintable, "Unprintable", "can't be printed: ValueError"),
    "hanging": (Hanging, "Hanging", "can't be printed: UnitTimeout"),
    "unpicklable": (lambda: TwoArguments("one", "two"), "TwoArguments", "one and two"),
    "cyclic": (make_cycle, "ValueError", "first"),
    "deep group": (lambda: nest_groups(5_000), "ExceptionGroup", "a group (1 sub-exception)"),
}
"""What is raised, and the type and a part of the text that must be on record."""


def make_raiser(name: str) -> Callable[[Any], Any]:
    def fail(ctx: Any) -> Any:
        raise RAISED[name][0]()

    return fail


for _name, (_, _kind, _text) in RAISED.items():
    POISONS[f"raises: {_name}"] = Poison(
        make_raiser(_name), Expected(*FAILED, error=_kind, text=_text)
    )


@poison(*FAILED, "RecursionError", "maximum recursion depth")
def recurses(ctx: Any) -> Any:
    recurse()


@poison(*FAILED, "MemoryError")
def wants_more_memory_than_it_may_have(ctx: Any) -> Any:
    """The step's own limit, which is set back after it; the machine's is not touched."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 * 1024**3, most))
    bytearray(16 * 1024**3)


# --- What it returns ------------------------------------------------------------------------------


def nest(depth: int) -> Any:
    value: Any = "innermost"
    for _ in range(depth):
        value = [value]
    return value


def make_endless() -> Any:
    endless: list[Any] = []
    endless.append(endless)
    return endless


RETURNED: dict[str, tuple[Callable[[], Any], str]] = {
    "object": (object, "output.value: a object is not JSON"),
    "set": (lambda: {1, 2}, "a set is not JSON"),
    "bytes": (lambda: b"\xff", "a bytes is not JSON"),
    "decimal": (lambda: Decimal("1.5"), "a Decimal is not JSON"),
    "generator": (lambda: (n for n in range(3)), "a generator is not JSON"),
    "NaN": (lambda: {"a": [{"b": float("nan")}]}, "output.value.a[0].b: nan is not a JSON number"),
    "infinity": (lambda: {"a": [{"b": 1e999}]}, "output.value.a[0].b: inf is not a JSON number"),
    "NUL": (lambda: "a\x00b", "contains a NUL character"),
    "NUL in a key": (lambda: {"a\x00b": 1}, "contains a NUL character"),
    "lone surrogate": (lambda: "\ud800", "contains a lone surrogate"),
    "number as key": (lambda: {1: 2}, "the key 1 is not a string"),
    "5,000 deep": (lambda: nest(5_000), "is nested deeper than 64 levels"),
    "without end": (make_endless, "is nested deeper than 64 levels"),
    "10,000 digits": (lambda: 10**10_000, "has more than 1,000 digits"),
}
"""What is returned under the key `value`, and a part of the text that must be on record."""


def make_returner(name: str) -> Callable[[Any], Any]:
    def give(ctx: Any) -> Any:
        return {"value": RETURNED[name][0]()}

    return give


for _name, (_, _text) in RETURNED.items():
    POISONS[f"returns: {_name}"] = Poison(make_returner(_name), Expected(*UNSTORABLE, text=_text))


@poison(*FAILED, "TypeError", "returned a int")
def returns_a_number(ctx: Any) -> Any:
    return 42


@poison(*DONE)
def returns_much(ctx: Any) -> Any:
    return {"text": "x" * 16_000_000, "keys": {f"k{n}": n for n in range(100_000)}}


@poison(*DONE)
def logs_much(ctx: Any) -> Any:
    for number in range(200_000):
        ctx.log.info("line %d \x00 \ud800", number)
    ctx.log.info("x" * 50_000_000)


@poison(*FAILED, "ValueError", "nan is no amount of progress")
def reports_no_number(ctx: Any) -> Any:
    ctx.report(float("nan"), 1)


@poison(*FAILED, "ValueError", "nan is a float")
def spends_no_number(ctx: Any) -> Any:
    ctx.spend(cost=float("nan"))


@poison("dead", "unserialisable_output", "Unserialisable")
def loops_with_what_cannot_be_stored(ctx: Any) -> Any:
    return Again({"value": {"a": [float("inf")]}})


# --- It forks -------------------------------------------------------------------------------------


@poison(*DONE)
def forks_and_both_sides_return(ctx: Any) -> Any:
    os.fork()
    return {"side": "any"}


@poison(*DONE)
def forks_and_the_child_raises(ctx: Any) -> Any:
    if os.fork() == 0:
        raise ValueError("in the child")


@poison(*DONE)
def forks_and_the_child_sleeps(ctx: Any) -> Any:
    if os.fork() == 0:
        time.sleep(60)


@poison(*DONE)
def forks_and_the_child_writes(ctx: Any) -> Any:
    """Refused there: only the worker writes."""
    if pid := os.fork():
        return {"refused": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7}
    try:
        ctx.report(1, note="from the child")
    except RuntimeError:
        os._exit(7)


def square(number: int) -> int:
    return number * number


@poison(*DONE)
def uses_multiprocessing(ctx: Any) -> Any:
    for method in ("fork", "forkserver"):  # the default until Python 3.13, and from 3.14 on
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        return {"squares": list(executor.map(square, [1, 2, 3]))}


@poison(*DONE)
def leaves_a_pool_open(ctx: Any) -> Any:
    executor = concurrent.futures.ProcessPoolExecutor(2)
    executor.submit(time.sleep, 600)
    pool = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    pool.start()


# --- It spoils its worker -------------------------------------------------------------------------


@poison(*DONE)
def lowers_the_limit_of_open_files(ctx: Any) -> Any:
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))


@poison(*DONE)
def leaves_its_folder(ctx: Any) -> Any:
    folder = ctx.workspace / "gone"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()


@poison(*DONE)
def takes_the_signals(ctx: Any) -> Any:
    for signum in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_IGN)


@poison(*DONE)
def closes_the_workers_session(ctx: Any) -> Any:
    connection.ensure_connection()
    assert connection.connection is not None
    connection.connection.close()


@poison(*FAILED, "TransactionLeftOpen", "transaction_left_open")
def leaves_a_transaction_open(ctx: Any) -> Any:
    connection.cursor().execute("BEGIN")


@poison(*DONE)
def leaves_a_thread_behind(ctx: Any) -> Any:
    threading.Thread(target=time.sleep, args=(3600,)).start()


@poison(*DONE)
def closes_its_output(ctx: Any) -> Any:
    sys.stdout.close()
