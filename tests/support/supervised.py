"""A real `fourfold train` with real ranks, which tests disturb from outside, and what an undisturbed one leaves."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fourfold.checkpoint import read_manifest
from fourfold.runtime.progress import Position, read_positions
from fourfold.supervise.observation import process_state

RUN = """
[model]
num_layers = 2
hidden_size = 32
num_heads = 4
ffn_size = 56
vocab_size = 320
[data]
corpus = "{corpus}"
tokenizer = "bytes"
directory = "{corpus}/../tokens"
[batch]
global_sequences = 12
sequence_length = 32
steps = {steps}
[layout]
zero = 1
[optimizer]
lr = 3e-3
[checkpoint]
every_steps = 5
[run]
device = "cpu"
threads_per_rank = 1
sample_tokens = 0
evaluate_sequences = 4
"""
GUARD_SECONDS = 280.0
"""After which a test no longer waits for what never comes; no law, so that a loaded machine breaks none."""
FAULTY = Path(__file__).with_name("faulty")
KEYS = ("step", "loss", "grad_norm", "lr", "tokens", "comm_bytes", "validation_loss")


def write_run(folder: Path, steps: int = 30) -> Path:
    """A run file with a corpus of its own."""
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number in range(40):
        (corpus / f"{number}.txt").write_text(f"document {number} " + "of many words " * (number % 7 + 3))
    (folder / "run.toml").write_text(RUN.format(corpus=corpus, steps=steps))
    return folder / "run.toml"


class Supervised:
    """One launch of `fourfold train`, in a process of its own; `fault`: as in `faulty/sitecustomize.py`. `flags`: of the command,
    and `prefix`: words before it. `machine`: its number, where several supervisors share the folder; `ranks` are those of each."""

    def __init__(
        self,
        run_file: Path,
        out: Path,
        *changes: str,
        ranks: int = 2,
        fault: str | None = None,
        flags: Sequence[str] = (),
        prefix: Sequence[str] = (),
        machine: int = 0,
        machines: int = 1,
    ) -> None:
        self.out, self.ranks = out, ranks * machines
        self._text = out.with_suffix(f".{machine}.txt" if machine else ".txt")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if fault is not None:
            paths = [str(FAULTY), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment |= {"PYTHONPATH": os.pathsep.join(paths), "FOURFOLD_TEST_FAULT": fault}
            environment["FOURFOLD_TEST_COUNTER"] = str(run_file.parent)
        command = [*prefix, sys.executable, "-m", "fourfold", "train", str(run_file), *changes]
        self._printed = open(self._text, "w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, "--ranks", str(ranks), "--out", str(out), *flags],
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            env=environment,
        )

    def __enter__(self) -> "Supervised":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        self._printed.close()

    @property
    def printed(self) -> str:
        return self._text.read_text()

    @property
    def positions(self) -> list[Position]:
        return read_positions(self.out)

    @property
    def pids(self) -> list[int]:
        """The processes of all ranks, once all have reported."""
        found = [position.pid for position in self.positions]
        return found if len(found) == self.ranks and all(found) else []

    def wait_until(self, condition: Callable[[], Any], seconds: float = GUARD_SECONDS) -> float:
        """The time that it took."""
        begun = time.monotonic()
        while not condition():
            assert self.process.poll() is None, self.printed
            assert time.monotonic() - begun < seconds, self.printed
            time.sleep(0.005)
        return time.monotonic() - begun

    def wait_for_step(self, step: int, seconds: float = GUARD_SECONDS) -> float:
        """Until all ranks are in a step past `step`."""
        return self.wait_until(lambda: self.pids and min(p.step for p in self.positions) > step, seconds)

    def signal_rank(self, rank: int, number: int) -> int:
        """The process that got it."""
        pid = self.pids[rank]
        os.kill(pid, number)
        return pid

    def wait_for_stop(self, rank: int) -> int:
        """Until a rank that stops itself (fault `stop`) has stopped. Its process."""
        self.wait_until(lambda: self.pids and process_state(self.pids[rank]) == "T")
        return self.pids[rank]

    def kill_rank(self, rank: int) -> None:
        """Returns once another process has taken its place."""
        old = self.pids
        os.kill(old[rank], signal.SIGKILL)
        self.wait_until(lambda: self.has_replaced(old))

    def kill_rank_for_ever(self, rank: int) -> None:
        """Kills a rank that cannot start again, and waits until that was noticed."""
        os.kill(self.pids[rank], signal.SIGKILL)
        self.wait_until(lambda: self.events("lose"))

    def has_replaced(self, old: list[int]) -> bool:
        """Whether all ranks are other processes than `old`, and have reported."""
        now = self.pids
        return bool(now) and not set(now) & set(old)

    def finish(self, seconds: float = GUARD_SECONDS) -> int:
        return self.process.wait(seconds)

    def seconds_to_finish(self) -> tuple[int, float]:
        """The exit code, and the time until then less the time in which processes of this launch waited for a processor that others
        had."""
        pids = with_children(self.process.pid)
        begun = time.monotonic()
        before = {pid: queued_seconds(pid) for pid in pids}
        last = dict(before)
        while (code := self.process.poll()) is None and time.monotonic() - begun < GUARD_SECONDS:
            last = {pid: max(last[pid], queued_seconds(pid)) for pid in pids}
            time.sleep(0.01)
        assert code is not None, self.printed
        return code, time.monotonic() - begun - sum(last[pid] - before[pid] for pid in pids)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in read_lines(self.out / "events.jsonl") if row["event"] == kind]


def with_children(pid: int) -> list[int]:
    """A process, the ones that it started, and theirs."""
    started = [text.split() for text in of_threads(pid, "children")]
    return [pid, *(each for text in started for child in text for each in with_children(int(child)))]


def queued_seconds(pid: int) -> float:
    """For how long the threads of a process have waited for a processor while they could have run; 0 where it has ended."""
    return sum(int(text.split()[1]) for text in of_threads(pid, "schedstat")) / 1e9


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def of_threads(pid: int, name: str) -> list[str]:
    """Texts of the file with a name of each thread of a process, but for threads that end meanwhile, and it."""
    told: list[str] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                told.append(Path(f"/proc/{pid}/task/{thread}/{name}").read_text())
    return [text for text in told if text]


def on_machines(
    run_file: Path, out: Path, *changes: str, machine: int, ranks: int = 1, machines: int = 2, port: int, **more: Any
) -> Supervised:
    """The supervisor of one of several machines, which are all this one."""
    flags = ["--nodes", str(machines), "--node-rank", str(machine), "--master", f"127.0.0.1:{port}"]
    return Supervised(run_file, out, *changes, ranks=ranks, machine=machine, machines=machines, flags=flags, **more)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines alone: the last may be being written."""
    complete = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in complete.splitlines()]


def left_by(out: Path) -> tuple[list[list[Any]], Any]:
    """Losses and the like of every step, and the checksums of all states at the end: equal to the bit or not."""
    rows = [[row.get(key) for key in KEYS] for row in read_lines(out / "metrics.jsonl")]
    last = sorted((out / "checkpoints").glob("step-*"))[-1]
    return rows, (last.name, read_manifest(last).files)
