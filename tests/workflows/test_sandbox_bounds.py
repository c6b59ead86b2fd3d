"""What a command in the sandbox can use up: nothing without end."""

from __future__ import annotations

from ledger.sandbox import TAIL_BYTES, Bounds
from tests.workflows.test_sandbox import confine, list_marked, mark

__all__ = ["mark"]  # a fixture


def test_memory_is_bounded() -> None:
    ended = confine("x = bytearray(3 * 1024**3)", Bounds(memory_bytes=1024**3, seconds=60))
    assert ended.code == 1
    assert "MemoryError" in ended.tail


def test_the_size_of_a_file_is_bounded() -> None:
    ended = confine("open('big', 'wb').write(bytes(2_000_000))", Bounds(file_bytes=1_000_000))
    assert ended.code == 1
    assert "File too large" in ended.tail


def test_processor_time_is_bounded() -> None:
    ended = confine(
        "import resource; print(resource.getrlimit(resource.RLIMIT_CPU))", Bounds(seconds=9)
    )
    assert ended.tail == "(10, 10)\n"


def test_of_a_flood_only_the_end_is_kept() -> None:
    ended = confine(
        """
        import os
        for _ in range(500):
            os.write(1, b"x" * 100_000)
        os.write(2, b"the end")
        """
    )
    assert ended.code == 0
    assert len(ended.tail) == TAIL_BYTES
    assert ended.tail.endswith("xxxthe end")


def test_a_flood_without_end_is_ended() -> None:
    ended = confine(
        "import os\nwhile True: os.write(1, b'x' * 100_000)", Bounds(output_bytes=5_000_000)
    )
    assert ended.tail.endswith("[ended here: more than 5000000 bytes of output]")
    assert not ended.timed_out
    assert ended.code != 0


def test_a_flood_of_the_report_is_bounded_too() -> None:
    ended = confine(
        "import os\nwhile True: os.write(REPORT, b'x' * 100_000)", Bounds(output_bytes=9_000_000)
    )
    assert sum(map(len, ended.report)) < 5_000_000


def test_a_fork_bomb_ends_at_the_deadline(mark: str) -> None:
    ended = confine(
        f"""
        import os, sys, time
        for _ in range(6):
            os.fork()
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", "{mark}"])
        """,
        Bounds(seconds=2),
    )
    assert ended.timed_out
    assert list_marked(mark) == []
