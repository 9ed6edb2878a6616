"""A rank's record of where it is: written without a system call, so that a slow disk holds up no instruction."""

import ctypes
import gc
import itertools
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fourfold.program import lower_step
from fourfold.runtime.progress import (
    NOWHERE,
    SAVING,
    TRAINING,
    WRITING,
    ProgressBoard,
    clear_positions,
    describe_save_wait,
    read_positions,
)
from tests.support.programs import make_view

PR_SET_SECCOMP, STRICT = 22, 1
"""In this mode the kernel kills a process at any system call but read, write and exit."""


def record_without_calls(board: ProgressBoard, counters: range, answer: int) -> None:
    """In a process of its own: records, and then writes a byte."""
    gc.disable()
    for counter in counters:
        board.record(counter)  # takes the memory that it needs
    if ctypes.CDLL(None).prctl(PR_SET_SECCOMP, STRICT, 0, 0, 0) == 0:
        for counter in counters:
            board.record(counter)
        os.write(answer, b"y")
    os._exit(0)


@pytest.mark.skipif("COVERAGE_PROCESS_START" in os.environ, reason="coverage makes system calls of its own")
def test_an_instruction_is_recorded_without_a_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clear_positions(tmp_path, 2)
    board, program = ProgressBoard(tmp_path, 1), lower_step(make_view(dp_shard=2, zero=3))
    board.enter(TRAINING, 5, program)
    counters = range(len(program.instructions))
    monkeypatch.setattr(time, "time", itertools.count(1.0).__next__)  # this mode forbids the processor's clock too
    answered, answer = os.pipe()
    process = os.fork()
    if process == 0:
        record_without_calls(board, counters, answer)
    os.close(answer)
    assert os.read(answered, 1) == b"y"
    os.close(answered)
    os.waitpid(process, 0)
    _, position = read_positions(tmp_path)
    assert (position.step, position.counter) == (5, counters[-1])


def test_every_rank_has_a_record_of_its_own(tmp_path: Path) -> None:
    """Also those whose records lie on another page of the file."""
    clear_positions(tmp_path, 200)
    assert read_positions(tmp_path) == []
    steps = {}
    for rank in (0, 70, 199):
        ProgressBoard(tmp_path, rank).enter(SAVING, rank + 1)
        steps[rank] = rank + 1
        positions = read_positions(tmp_path)
        assert len(positions) == 200
        assert {place: each.step for place, each in enumerate(positions) if each != NOWHERE} == steps


def test_a_device_stands_where_it_is_and_not_where_its_host_is(tmp_path: Path) -> None:
    """A thread that looked at the program before says nothing of the one that runs now."""
    clear_positions(tmp_path, 1)
    board, program = ProgressBoard(tmp_path, 0, has_device=True), lower_step(make_view(dp_shard=2, zero=3))
    (place,) = read_positions(tmp_path)
    assert (place.completed, place.at) == (-1, 0)
    board.enter(TRAINING, 5, program)
    board.record(20)
    before = board.epoch
    board.complete(7, 0.5, before)
    (place,) = read_positions(tmp_path)
    assert (place.counter, place.completed, place.at, place.is_issued_ahead) == (20, 7, 7, True)
    assert place.busy_seconds == 0.5
    board.enter(TRAINING, 6, program)
    board.complete(9, 0.5, before)
    (place,) = read_positions(tmp_path)
    assert (place.step, place.completed, place.busy_seconds) == (6, 0, 0.5)
    board.enter(SAVING, 6)
    board.saves(WRITING)
    (place,) = read_positions(tmp_path)
    assert (place.completed, place.save) == (-1, WRITING)


def test_who_has_not_come_to_a_save_is_named() -> None:
    """A rank that saves an earlier step has not, nor has one that does something else at that step."""
    places = [
        replace(NOWHERE, step=step, kind=kind) for step, kind in ((5, SAVING), (4, SAVING), (5, SAVING), (5, TRAINING))
    ]
    assert describe_save_wait(0, 5, places) == (
        "rank 0 waits to save step 5; rank 1 stopped at step 4 #0; rank 3 stopped at step 5 #0"
    )
    assert describe_save_wait(0, 5, places[:1] + places[2:3]).endswith("all its peers came: a connection was lost")
