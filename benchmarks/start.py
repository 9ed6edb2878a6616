"""How a run starts: seconds from the command to its first finished step, and the first step beside those after it.

    python benchmarks/start.py                  # 4 ranks, 5 launches
    python benchmarks/start.py --ranks 1

`fourfold train` starts as a person starts it, on a corpus that is prepared. Plain PyTorch trains the same shape in a fresh process
on one rank's batch, in turn with it: what a first step costs there (memory, kernels that are chosen) is what it costs anybody.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fourfold.train.fork_server import MESSAGE_BYTES, end_server, start_server
from fourfold_peer import run_table
from measure import Work, on_fresh_ranks
from plain_llama import Shape

STEPS = 8
SHAPE = Shape(hidden_size=256, num_layers=4, num_heads=4, num_kv_heads=2, ffn_size=704, max_position=256)
SEQUENCES = 1


class Launch(NamedTuple):
    """`ready`: seconds from the command until its first step had ended; `processor`: of all its processes, to its end; `steps`:
    seconds of each step."""

    ready: float
    processor: float
    steps: list[float]

    @property
    def first(self) -> float:
        """The first step over the median of those after it."""
        return self.steps[0] / statistics.median(self.steps[1:])


def write_run(folder: Path, ranks: int, tracks: bool) -> Path:
    """A run of the shape on the standard library, one microbatch a rank, ZeRO-3."""
    layout = {"zero": 3 if ranks > 1 else 0, "microbatch_sequences": SEQUENCES}
    table = run_table(SHAPE, layout, ranks * SEQUENCES, SHAPE.max_position, 3e-4)
    table["batch"]["steps"] = STEPS
    table["data"] = {"tokenizer": "bytes", "directory": str(folder / "data")}
    table["run"] = {
        "sample_tokens": 0,
        "evaluate_sequences": ranks * SEQUENCES,
        "threads_per_rank": 1,
        "track_memory": tracks,
    }
    path = folder / "run.toml"
    lines = []
    for section, keys in table.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def launch(run: Path, ranks: int, out: Path) -> Launch:
    before = os.times()
    begun = time.perf_counter()
    command = [sys.executable, "-m", "fourfold", "train", str(run), "--ranks", str(ranks), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        metrics = out / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
            time.sleep(0.002)
        ready = time.perf_counter() - begun
    if process.returncode:
        raise SystemExit(f"fourfold train ended with exit code {process.returncode}")
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return Launch(ready, processor, [row["step_seconds"] for row in rows])


def import_seconds() -> float:
    """Processor seconds of the process that imports what ranks need and forks them, until it is ready."""
    server, connection = start_server()
    try:
        connection.recv(MESSAGE_BYTES)
        return _used(server.pid)
    finally:
        end_server((server, connection))


def _used(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def plain_steps(work: Work, rank: int) -> list[float]:
    """Seconds of the first steps of plain PyTorch in this process."""
    peer, found = work.contender("local"), []
    for step in range(STEPS):
        tokens, targets = work.batch(rank, step)
        begun = time.perf_counter()
        peer.step(tokens, targets)
        found.append(time.perf_counter() - begun)
    return found


def spread(values: list[float], text: Callable[[float], str]) -> str:
    return f"{text(statistics.median(values))} ({text(min(values))}–{text(max(values))})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--track-memory", action="store_true", help="the first step measures the peak memory")
    options = parser.parse_args()
    work = Work(SHAPE, 1, SEQUENCES, SHAPE.max_position)
    launches, peers, imports = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = write_run(folder, options.ranks, options.track_memory)
        launch(run, options.ranks, folder / "preparing")
        for number in range(options.launches):
            imports.append(import_seconds())
            launches.append(launch(run, options.ranks, folder / f"run-{number}"))
            peers.append(Launch(0.0, 0.0, on_fresh_ranks(work, partial(plain_steps, work))))
    seconds, ratio = "{:.2f} s".format, "{:.2f}".format
    print(f"{options.ranks} ranks on {os.cpu_count()} cores, median (least–most) of {options.launches} launches")
    print(f"from the command to the end of the first step: {spread([each.ready for each in launches], seconds)}")
    print(f"of the processor, all {STEPS} steps: {spread([each.processor for each in launches], seconds)}")
    print(f"of the processor, to import what ranks need: {spread(imports, seconds)}")
    print(f"first step over the median of the others: {spread([each.first for each in launches], ratio)}")
    print(f"the same of plain PyTorch on one rank: {spread([each.first for each in peers], ratio)}")


if __name__ == "__main__":
    main()
