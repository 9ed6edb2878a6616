"""Asking ranks for their calls harms nobody: no rank that runs many threads, and no process that is not of the run."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.supervise.observation import process_state
from fourfold.supervise.tracebacks import answers_into, read_tracebacks
from fourfold.train.worker import traceback_file
from tests.support.waiting import until

RANK = """
import os, sys, threading
from pathlib import Path
os.environ["RANK"] = "0"
from fourfold.train.worker import _write_tracebacks_on_request
_write_tracebacks_on_request(Path(sys.argv[1]))
def deep(n):
    return deep(n - 1) if n else len(sys.argv)
def run():
    while True:
        deep(50)
for _ in range(8):
    threading.Thread(target=run, daemon=True).start()
def run_worker():
    print("ready", flush=True)
    while True:
        deep(20)
run_worker()
"""


def test_a_rank_with_busy_threads_outlives_hundreds_of_questions(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path)], stdout=subprocess.PIPE, text=True) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
            answers = 0
            for _ in range(500):
                answers += bool(read_tracebacks(tmp_path, {0: rank.pid}))
                assert rank.poll() is None
            assert answers
        finally:
            rank.kill()


@pytest.mark.parametrize("other", ["no file", "a file of another folder", "a copy under the same name"])
def test_a_process_that_is_no_rank_of_the_folder_gets_no_signal(other: str, tmp_path: Path) -> None:
    """Number and folder are a stranger's: what the signal would do is end the process."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        (folder / "logs").mkdir(parents=True)
        traceback_file(folder, 0).write_text("")
    held = traceback_file(theirs, 0) if other == "a file of another folder" else tmp_path / "log"
    if other == "a copy under the same name":
        held = traceback_file(mine, 0)
    with open(held, "a") as file, subprocess.Popen(["sleep", "60"], stdout=file) as process:
        if other == "a copy under the same name":
            held.unlink()
            held.write_text("")
        try:
            until(lambda: process_state(process.pid) == "S", process)
            assert read_tracebacks(mine, {0: process.pid}) == {}
            assert process.poll() is None
        finally:
            process.kill()


def test_who_holds_the_file_is_asked(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = traceback_file(tmp_path, 0)
    with open(path, "a") as file, subprocess.Popen(["sleep", "60"], stdout=file) as process:
        try:
            until(lambda: answers_into(process.pid, path), process)
        finally:
            process.kill()
