"""The text of a log: whole lines of known origin, cleaned, masked and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from ledger import secrets, unitlog
from ledger.unitlog import UnitLog, read_after


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(secrets, "_forms", set())
    monkeypatch.setattr(secrets, "_pattern", None)
    secrets.hide_value("s3cr3t-word")
    return "s3cr3t-word"


def read(log: UnitLog) -> list[str]:
    return [line[9:] for line in log.read_whole().splitlines()]


def test_lines_are_whole_and_masked_whichever_pieces_they_come_in(secret: str) -> None:
    data = f"one {secret}\ntwo é {secret} end\n\nlast".encode()
    for size in range(1, len(data)):
        log = UnitLog()
        for start in range(0, len(data), size):
            log.add_output(data[start : start + size])
        log.end_output()
        assert read(log) == ["OUT one [secret]", "OUT two é [secret] end", "OUT ", "OUT last"]


def test_of_a_line_without_end_the_beginning_is_shown_and_no_half_secret(secret: str) -> None:
    """Masked text is shorter, so a secret that is cut far behind may come near the front."""
    log = UnitLog()
    log.add_output((secret * 20_000).encode() + b"\nnext\n")
    first, last = read(log)
    assert "s3c" not in first
    assert first.endswith(f"{220_000:,} bytes in one line")
    assert len(first) < unitlog.MAX_LINE
    assert last == "OUT next"


def test_nothing_that_moves_a_cursor_or_turns_a_text_round_is_stored() -> None:
    log = UnitLog()
    log.add_output(b"\x1b[2J\x1b]0;title\x07ok\x1bc \x9b1m\x00\x08\x7f\xff\n")
    log.add_output("10%\r20%\r100%\r\n \u202eevil\u2066 \u2028line \x85\n".encode())
    text = log.read_whole()
    assert read(log)[0] == "OUT ok \ufffd1m\\x00\\x08\\x7f\ufffd"
    assert "OUT 100%" in read(log)
    assert not any(ord(c) < 32 for c in text if c not in "\n\t")
    assert not set(text) & set("\x1b\x7f\x85\u202e\u2066\u2028")
    assert len(text.splitlines()) == 3


def test_no_text_passes_for_a_line_of_ours() -> None:
    log = UnitLog()
    log.add(0.0, "INFO", ["first\n00:00:00 CRITICAL forged\n… 5 bytes left out …"])
    assert log.read_whole() == (
        "00:00:00 INFO first\n    00:00:00 CRITICAL forged\n    … 5 bytes left out …\n"
    )


def test_beyond_its_bound_both_ends_are_kept_and_positions_hold(settings: Any) -> None:
    settings.LONGWATCH_LOG_BYTES = 8_000
    log = UnitLog()
    for number in range(2_000):
        log.add(0.0, "INFO", [f"line {number}"])
    whole = log.read_whole()
    assert len(whole.encode()) <= 8_100
    lines = whole.splitlines()
    assert lines[0].endswith("line 0")
    assert lines[-1].endswith("line 1999")
    missing = [line for line in lines if "left out" in line]
    kept = sum(len(line) + 1 for line in lines if "left out" not in line)
    assert missing == [f"… {log.size - kept:,} bytes left out …"]

    ring, size = log.read_ring()
    assert read_after(whole, size, 0) == ("", size)
    at, shown = 0, ""
    while True:
        part, after = read_after(whole, at, 0, 500)
        if after == at:
            break
        at, shown = after, shown + part
    assert (shown, at) == (whole, size), "piece by piece it is the same"
    start = size - len(ring.encode()) - 1
    told, after = read_after(ring, 0, start)
    assert told.startswith(f"… {start:,} bytes left out …\n")
    assert after == size


def test_what_is_skipped_is_counted_and_the_line_that_it_ends_in_is_not_believed() -> None:
    log = UnitLog()
    log.add_output(b"begin\nhalf of a li")
    log.skip_output(1_000_000)
    log.add_output(b"the other half\nend\n")
    assert read(log)[0] == "OUT begin"
    assert read(log)[-1] == "OUT end"
    assert "half" not in log.read_whole()
    assert "1,000,000 bytes left out" in log.read_whole()
