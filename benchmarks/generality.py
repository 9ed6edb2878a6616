"""Cost of a step being a program: the interpreter's own time, with its handlers' bookkeeping, as a share of the step.

All that computes or communicates is timed from outside: segment functions, the starting and joining of
collectives, the optimizer, the gradient norm. The rest of the main thread's processor time is the interpreter: its loop,
dictionaries, buffers taken and freed, the reading of the batch, and the timers themselves.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from fourfold.runtime import collectives, compute, norm, optimizer
from fourfold_peer import Fourfold
from measure import Work, on_fresh_ranks
from plain_llama import Shape

RANKS, WARMUP, STEPS = 2, 3, 9
MODEL = {"preset": "tiny", "vocab_size": 4096}  # as examples/stdlib.toml, like the layout
LAYOUT = {"dp_shard": RANKS, "zero": 3, "microbatch_sequences": 4}
SEQUENCES, LENGTH = 16, 256
FUNCTIONS = (
    "block_forward", "block_backward", "losses", "losses_backward", "embedding_forward", "embedding_backward",
)  # fmt: skip
WORK = [
    *((compute, name) for name in FUNCTIONS),
    *((collectives.Handle, name) for name in ("__init__", "advance", "wait")),
    (optimizer.ShardOptimizer, "update"),
    (norm.GradientNorm, "sum_of_squares"),
]


class Inside:
    """Processor time of the calling thread within any of the wrapped functions, those that they call included."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.entered = False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if self.entered:
                return function(*args, **options)
            self.entered = True
            start = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                self.seconds += time.thread_time() - start
                self.entered = False

        return run

    @contextlib.contextmanager
    def everywhere(self) -> Iterator[None]:
        with contextlib.ExitStack() as patches:
            for owner, name in WORK:
                patches.enter_context(patch.object(owner, name, self.timed(getattr(owner, name))))
            yield


def shares(rank: int) -> dict[str, float]:
    """Medians over the steps: the step's seconds, the interpreter's, the bare loop's, and the number of instructions."""
    size = {"size": (SEQUENCES, LENGTH + 1), "generator": torch.Generator().manual_seed(0)}
    tokens = torch.randint(MODEL["vocab_size"], **size)
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    peer = tiny()
    steps, interpreter = [], []
    for number in range(WARMUP + STEPS):
        inside = Inside()
        with inside.everywhere():
            wall, used = time.perf_counter(), time.thread_time()
            peer.step(*batch)
            wall, used = time.perf_counter() - wall, time.thread_time() - used
        if number >= WARMUP:
            steps.append(wall)
            interpreter.append(used - inside.seconds)
    return {
        "step": statistics.median(steps),
        "interpreter": statistics.median(interpreter),
        "loop": bare_loop(peer, batch),
        "instructions": len(peer.program.instructions),
    }


def tiny() -> Fourfold:
    """The preset's model, every weight the same small number: time does not depend on values."""

    class Constant(dict):
        def __missing__(self, name: str) -> Any:
            return torch.full((MODEL["vocab_size"] * 1024,), 0.01)

    return Fourfold("tiny", Shape(), Constant(), 1e-3, LAYOUT, LENGTH, SEQUENCES, MODEL)


def bare_loop(peer: Fourfold, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Seconds of the same program when every handler, and every release of a buffer, does nothing."""
    data, seconds = peer.data(*batch), []
    idle = [(lambda step: None, step, (), ()) for step in peer.program.instructions]
    peer.executor._programs[id(peer.program)] = peer.program, idle
    for _ in range(WARMUP + STEPS):
        start = time.thread_time()
        peer.executor.run(peer.program, data)
        seconds.append(time.thread_time() - start)
    return statistics.median(seconds)


def generality_lines() -> list[str]:
    """One line."""
    found = on_fresh_ranks(Work(ranks=RANKS), partial(shares))
    share = 100 * found["interpreter"] / found["step"]
    line = (
        f"cost of generality (preset tiny, {RANKS} ranks, ZeRO-3, {SEQUENCES} x {LENGTH} tokens, {found['instructions']} "
        f"instructions): {share:.2f} % of a step of {found['step']:.3f} s is outside compute and communication "
        f"({1e3 * found['interpreter']:.2f} ms; the bare loop over all instructions: {1e6 * found['loop']:.0f} us)"
    )
    print("  " + line, flush=True)
    return [line]
