"""Microseconds of interpreter an instruction: the executor runs whole steps in which nothing is computed, sent or allocated.

    python benchmarks/interpreter.py

Segments, collectives, optimizer and norm answer at once; one process plays a rank of each layout. The rest is the host's own work:
the loop, the handlers, buffers of some bytes taken and freed, the times of instructions, the record that the supervisor reads.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import Layout, resolve_layout
from fourfold.model.environment import Microbatch
from fourfold.program import lower_step, rank_view, resolve_step
from fourfold.runtime import compute, norm, optimizer
from fourfold.runtime.clock import StepClock
from fourfold.runtime.collectives import bind_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.progress import TRAINING, ProgressBoard
from fourfold.runtime.units import build_units

WARMUP, STEPS = 20, 200
MODEL = {"num_layers": 8, "hidden_size": 8, "num_heads": 2, "num_kv_heads": 2, "ffn_size": 16, "vocab_size": 32}
LAYOUTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "one rank": (1, 0, {}),
    "ZeRO-3 of 4": (4, 0, {"dp_shard": 4, "zero": 3}),
    "HSDP 2 x 2, ZeRO-2": (4, 0, {"dp_replicate": 2, "dp_shard": 2, "zero": 2}),
    "1F1B of 4, ZeRO-1": (8, 2, {"pp": 4, "schedule": "1f1b", "dp_shard": 2, "zero": 1}),
    "zero bubble of 4": (4, 1, {"pp": 4, "schedule": "zb_h1"}),
}
"""By name: ranks, the rank that is played, the layout."""


class IdleLink:
    """A link on which everything is over at once."""

    native = True

    def wait(self) -> None:
        """A call that was started: this object stands for it."""

    def start(self, *tensors: Any) -> "IdleLink":
        return self

    all_gather = reduce_scatter = all_reduce = all_to_all = send = receive = start

    def exchange(self, sent: Sequence[Any], received: Sequence[Any]) -> list["IdleLink"]:
        return [self]


class IdleLinks:
    """Makes idle links."""

    native, names_all = True, False

    def link(self, axes: str, ranks: Sequence[int], rank: int) -> IdleLink:
        return IdleLink()

    def pipeline(self, layout: Layout, rank: int, link: IdleLink | None) -> IdleLink:
        return IdleLink()


@contextlib.contextmanager
def nothing_computed() -> Iterator[None]:
    """Within the block, the result of any computation is a tensor that is there already."""
    one = torch.ones(())
    ones = torch.ones(1)
    idle: dict[tuple[Any, str], Any] = {
        (compute, "block_forward"): lambda *args: one,
        (compute, "block_backward"): lambda *args: one,
        (compute, "losses"): lambda *args: ones,
        (compute, "losses_backward"): lambda *args: (ones, one),
        (compute, "embedding_forward"): lambda *args: one,
        (compute, "embedding_backward"): lambda *args: None,
        (compute.SegmentRunner, "_record"): lambda self, sums: None,
        (compute.SegmentRunner, "_settle"): lambda self, units: None,
        (norm.GradientNorm, "sum_of_squares"): lambda self: torch.ones((), dtype=torch.float64),
        (optimizer.ShardOptimizer, "update"): lambda self, *args: None,
    }
    with contextlib.ExitStack() as patches:
        for (owner, name), function in idle.items():
            patches.enter_context(patch.object(owner, name, function))
        yield


def interpreter_seconds(name: str, folder: Path) -> tuple[int, float]:
    """Number of instructions of a step, and seconds of the thread for one of them, in the step that was disturbed least."""
    ranks, rank, layout = LAYOUTS[name]
    table = {
        "model": MODEL,
        "data": {"corpus": "stdlib"},
        "batch": {"global_sequences": 16, "sequence_length": 8, "steps": 1},
        "layout": {"microbatch_sequences": 1, **layout},
    }
    config = parse_run(table)
    model = resolve_model(config.model)
    spec = resolve_step(config, model, resolve_layout(config, model, ranks), "native")
    view = rank_view(spec, spec.layout.pp_rank(rank))
    program = lower_step(view)
    groups = bind_groups(spec.layout, rank, groups_of(spec), IdleLinks(), {})
    device = torch.device("cpu")
    tensors = build_units(view, rank, config.optimizer, device, lambda flat, index, out: None)
    board = ProgressBoard(folder, rank)
    executor = Executor(view, tensors, groups, config.optimizer, device, rank, board.record)
    batch = Microbatch(torch.zeros(1, 8), torch.zeros(1, 8), {})
    data = SimpleNamespace(num_targets=8, load=lambda microbatch: batch)
    clock, seconds = StepClock(device), []
    for step in range(WARMUP + STEPS):
        start = time.thread_time()
        board.enter(TRAINING, step, program)
        clock.begin(step)
        executor.run(program, data, observer=clock)
        clock.finish(0.0)
        seconds.append(time.thread_time() - start)
    return len(program.instructions), min(seconds[WARMUP:]) / len(program.instructions)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, nothing_computed():
        for name in LAYOUTS:
            number, seconds = interpreter_seconds(name, Path(folder))
            print(f"{name:<20} {number:>5} instructions  {1e6 * seconds:6.2f} us each", flush=True)


if __name__ == "__main__":
    main()
