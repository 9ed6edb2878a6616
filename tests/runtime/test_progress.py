"""A rank's record of where it is: written without a system call, so that a slow disk holds up no instruction."""

import ctypes
import gc
import itertools
import os
import time
from pathlib import Path

import pytest

from fourfold.program import lower_step
from fourfold.runtime.progress import TRAINING, ProgressBoard, clear_positions, read_positions
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
