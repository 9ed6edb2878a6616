"""A rank's log never holds more than so much, whatever the rank goes on to write by the descriptor that it was given."""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fourfold.launch import bounded_log, processes
from fourfold.launch.bounded_log import bound_log, earlier_log, open_log, read_log_end
from fourfold.launch.failures import RankFailure
from fourfold.launch.processes import LocalRanks
from fourfold.launch.run_folder import RunFolder

WRITER = "import sys, time\nfor number in range(20000): print(f'line {number:05d} of what a rank says'); sys.stdout.flush()\n"
# what is written at the very moment of a move may be lost, so the last words come when there is nothing to move
RESTS = WRITER + "time.sleep(0.5)\n"
ENDS = RESTS + "print('the last word', flush=True)\n"
FAILS = RESTS + "print('error: the widget is bent'); sys.exit(7)\n"
LINE = re.compile(rb"line (\d{5}) of what a rank says\n")


def _spawn(text: str, log: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", text], stdout=log, stderr=subprocess.STDOUT)


def test_what_is_written_stays_within_twice_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_log, "LARGEST_BYTES", 40_000)
    path = tmp_path / "rank-00000.log"
    with open_log(path, anew=True) as log:
        process = _spawn(ENDS, log)
    moved = 0
    while process.poll() is None:
        moved += bound_log(path) > 0
    moved += bound_log(path) > 0
    assert moved >= 2
    assert path.stat().st_size <= 40_000
    earlier, later = _numbers(earlier_log(path).read_bytes()), _numbers(path.read_bytes())
    assert len(earlier) > 1000
    assert not later or earlier[-1] < later[0]
    assert path.read_bytes().endswith(b"the last word\n")


def _numbers(text: bytes) -> list[int]:
    """The numbers of a log's lines, which follow one another: text is cut at its ends alone, and no byte is empty."""
    lines = list(LINE.finditer(text))
    numbers = [int(line[1]) for line in lines]
    assert numbers == [number + min(numbers) for number in range(len(numbers))]
    assert b"".join(line[0] for line in lines) in text
    assert len(text) - sum(len(line[0]) for line in lines) < 100
    return numbers


def test_a_log_that_is_not_large_or_not_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.log"
    assert not bound_log(path)
    with open_log(path, anew=True) as log:
        log.write(b"a word\n")
    with open_log(path, anew=False) as log:
        log.write(b"another\n")
    assert not bound_log(path)
    assert path.read_bytes() == b"a word\nanother\n"
    assert not earlier_log(path).exists()
    earlier_log(path).write_bytes(b"of a run before")
    open_log(path, anew=True).close()
    assert path.read_bytes() == b""
    assert not earlier_log(path).exists()


def test_the_reason_of_a_failure_is_found_after_its_log_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_log, "LARGEST_BYTES", 40_000)
    monkeypatch.setattr(processes, "_LOG_SECONDS", 0.0)

    class Spawner:
        exit_code = None

        def spawn(self, environment: dict[str, str], log: Any) -> subprocess.Popen[bytes]:
            return _spawn(FAILS, log)

    (tmp_path / "logs").mkdir()
    folder = RunFolder(tmp_path)
    folder.log(0).write_bytes(b"error: of a generation before\n" * 1000)
    ranks = LocalRanks(folder, Spawner())  # type: ignore[arg-type]
    ranks.start({0: 0}, 1, 1, 1, {})
    while ranks.alive():
        ranks.collect()
        time.sleep(0.002)
    ranks.collect()
    assert earlier_log(folder.log(0)).exists()
    assert [(failure.rank, failure.exit_code) for failure in ranks.failures] == [(0, 7)]
    assert "the widget is bent" in _text(ranks.failures[0])


def test_the_end_of_a_log_reaches_back_into_what_was_moved_and_no_further_than_its_generation(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.log"
    earlier_log(path).write_bytes(b"before;mine;")
    path.write_bytes(b"then;")
    assert read_log_end(path, -5, 100) == b"mine;then;"
    assert read_log_end(path, -5, 8) == b"ne;then;"
    assert read_log_end(path, -500, 100) == b"before;mine;then;"
    assert read_log_end(path, 0, 100) == b"then;"
    assert read_log_end(path, 2, 100) == b"en;"
    earlier_log(path).unlink()
    assert read_log_end(path, -5, 100) == b"then;"


def _text(failure: RankFailure) -> str:
    return failure.message
