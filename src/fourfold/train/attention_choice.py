"""Which back end computes a run's attention: the one that the run file names, that of its checkpoint, or the fastest.

On CUDA the back ends are compared on the run's own shapes (`flash.choice`), every rank with all others at once. A back end's
time is its slowest rank's, so that all ranks take the same. A processor has one that is fast, and compares nothing.
"""

import time
from collections.abc import Callable, Mapping
from math import gcd
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from fourfold.checkpoint import DamagedCheckpoint, read_manifest
from fourfold.config import RunConfig, RunFailure, UserError
from fourfold.flash import choice, remembered
from fourfold.flash.backends import BACKENDS, FLASH, AttentionBackend, AttentionCase
from fourfold.model import torch_operations
from fourfold.model.operations import Operations, with_operations
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec
from fourfold.train.session import RankContext

REPEATS = 3


class AgreeingRanks(Protocol):
    """Ranks that agree with each other; a `RankContext`."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def least(self, value: int) -> int: ...

    def most(self, values: list[float]) -> list[float]: ...

    def tell(self, text: str, source: int) -> str: ...


class Chosen(NamedTuple):
    """The back end, and in words why it is this one; no words where there was no choice."""

    backend: AttentionBackend
    reason: str = ""

    @property
    def operations(self) -> Operations:
        """Torch's, with attention by the back end."""
        attention = {"attend": self.backend.attend, "attend_backward": self.backend.attend_backward}
        return with_operations(torch_operations, attention)


def attention_case(spec: StepSpec, device: torch.device) -> AttentionCase:
    """The attention of one microbatch on one rank. On a processor documents are calls of their own."""
    layout, model = spec.layout, spec.model
    ranks = layout.tp * layout.cp_ulysses
    heads = max(1, model.num_heads // ranks)
    return AttentionCase(
        batch=layout.microbatch_sequences,
        queries=layout.sequence_length // layout.cp_ring,
        heads=heads,
        kv_heads=gcd(heads, max(1, model.num_kv_heads // ranks)),
        width=model.head_dim,
        value_width=model.value_head_dim or model.head_dim,
        dtype=torch_dtype(spec.compute),
        device=device,
        documents=spec.document_mask and device.type != "cpu",
        rectangles=layout.cp_ring > 1,
    )


def choose_for_run(config: RunConfig, spec: StepSpec, context: RankContext, newest: Path | None) -> Chosen:
    """The choice at the start of a training. `newest`: the checkpoint that it may go on from."""
    device, recorded = context.device, ""
    if device.type == "cuda":
        recorded = context.tell(recorded_choice(newest, "attention") if context.rank == 0 else "", 0)
    chosen = choose_attention(
        attention_case(spec, device),
        BACKENDS,
        context,
        config.run.attention_backend,
        recorded,
        remembered.default_path(),
        device_clock(device),
        measures=device.type == "cuda",
    )
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return chosen


def recorded_choice(newest: Path | None, key: str) -> str:
    """The choice that a checkpoint was made with; empty where it does not say, or cannot be read."""
    try:
        found = read_manifest(newest).info.get(key) if newest is not None else None
    except (OSError, ValueError, DamagedCheckpoint):
        return ""
    return found if isinstance(found, str) else ""


def choose_attention(
    case: AttentionCase,
    backends: Mapping[str, AttentionBackend],
    ranks: AgreeingRanks,
    named: str,
    recorded: str,
    cache: Path,
    clock: choice.Clock,
    measures: bool,
) -> Chosen:
    """The back end of a run, the same on every rank, each of which calls this. `named`: by the run file, or `auto`; `recorded`: by
    its checkpoint, or empty; `measures`: whether back ends are compared. Raises `UserError` where the named one cannot be taken."""
    if named != "auto":
        problem = _agreed_problem(backends[named], case, ranks)
        if problem is not None:
            raise UserError(
                f'run.attention_backend = "{named}": {problem}; allowed: one that takes this run\'s attention; '
                f'a value that works: "auto"'
            )
        return Chosen(backends[named], "as the run file says")
    if not measures:
        return Chosen(backends[FLASH.name])
    if recorded in backends and _agreed_problem(backends[recorded], case, ranks) is None:
        return Chosen(_activated(backends[recorded]), "as before the checkpoint")
    key = remembered.key_of(case)
    known = remembered.recall(cache, key, backends)
    problems: dict[str, str | None] = {}
    if known is None:
        trials = choice.compare(backends.values(), case, clock)
        problems = {name: trial.problem for name, trial in trials.items()}
        known = {name: trial.seconds for name, trial in trials.items()}
        remembered.remember(cache, key, known)
    seconds = dict(zip(backends, ranks.most([known[name] for name in backends]), strict=True))
    times = ", ".join(f"{name} {1000 * each:.2f}" for name, each in seconds.items() if each < float("inf"))
    while (name := choice.fastest(seconds)) is not None:
        if _agreed_problem(backends[name], case, ranks) is None:
            return Chosen(_activated(backends[name]), f"the fastest, in ms of forward and backward: {times}")
        seconds[name] = float("inf")
    raise RunFailure(f"no back end computes this run's attention: {problems or 'those known from before fail now'}")


def device_clock(device: torch.device) -> choice.Clock:
    """The shortest of a few calls, after one that compiles what there is to compile."""

    def seconds(call: Callable[[], object]) -> float:
        times = []
        for _ in range(1 + REPEATS):
            _synchronize(device)
            begun = time.perf_counter()
            call()
            _synchronize(device)
            times.append(time.perf_counter() - begun)
        return min(times[1:])

    return seconds


def _agreed_problem(backend: AttentionBackend, case: AttentionCase, ranks: AgreeingRanks) -> str | None:
    """Why some rank cannot take a back end; None on every rank, or the same on every rank."""
    problem = choice.examine(backend, case)
    first = ranks.least(ranks.rank if problem is not None else ranks.world_size)
    return None if first == ranks.world_size else ranks.tell(problem or "", first)


def _activated(backend: AttentionBackend) -> AttentionBackend:
    backend.activate()
    return backend


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
