"""Tracebacks of ranks that run: each writes its own to a file when it gets a signal, in whatever call it is."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fourfold.supervise.observation import process_state
from fourfold.train.worker import TRACEBACKS, traceback_file

_WAIT_SECONDS = 0.3
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')


def read_tracebacks(folder: Path, pids: Mapping[int, int]) -> dict[int, tuple[str, ...]]:
    """By rank: the calls of its main thread, innermost first, as `file:line function`; without ranks that did not answer.

    `pids`: processes by rank. Ranks that are stopped cannot answer and are not asked; a process that is no rank of this folder is
    left alone, whatever a file says, since the signal would end it.
    """
    begins = {}
    for rank, pid in pids.items():
        path = traceback_file(folder, rank)
        if process_state(pid) in ("R", "S", "D") and answers_into(pid, path):
            begins[rank] = path.stat().st_size
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, TRACEBACKS)
    deadline = time.monotonic() + _WAIT_SECONDS
    found: dict[int, tuple[str, ...]] = {}
    while len(found) < len(begins) and time.monotonic() < deadline:
        time.sleep(0.01)
        for rank, begin in begins.items():
            if frames := _main_thread(traceback_file(folder, rank), begin):
                found[rank] = frames
    return found


def answers_into(pid: int, path: Path) -> bool:
    """Whether a process holds that file of tracebacks open, which a rank does from when it is ready to be asked: the proof that
    the process is a rank of the file's run. Numbers of processes in a folder prove nothing: they are given again, or made up."""
    try:
        wanted, name = path.stat(), str(path.resolve())
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.readlink(link) == name and os.path.samestat(link.stat(), wanted):
                    return True
    except OSError:
        return False
    return False


def _main_thread(path: Path, begin: int) -> tuple[str, ...]:
    """The thread that runs the worker; empty while it is not written in full."""
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ()
    for thread in re.split(r"\n(?=(?:Current thread|Thread) 0x)|\n\n", text):
        frames = [f"{match[1]}:{match[2]} {match[3]}" for line in thread.splitlines() if (match := _FRAME.match(line))]
        if any(frame.endswith(" run_worker") for frame in frames):
            return tuple(frames)
    return ()


def native_traceback(pid: int) -> str:
    """The traceback with its native calls, where py-spy is installed and may look; else empty."""
    program = shutil.which("py-spy")
    if program is None:
        return ""
    with suppress(subprocess.SubprocessError, OSError):
        done = subprocess.run(
            [program, "dump", "--native", "--pid", str(pid)], capture_output=True, text=True, timeout=20, check=False
        )
        return done.stdout
    return ""
