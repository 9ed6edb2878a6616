"""The bubble of a pipeline, measured beside predicted: every rank's idle share from its instructions' own times, and the idle
share that `timeline` gives for the same orders with each stage's measured times and the link's. It means something where every
rank has a core of its own.
"""

import statistics
import time
from collections import defaultdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from fourfold.program import Instruction, Op
from fourfold.program.compiled import CompiledStages
from fourfold.program.schedule import StageTimes
from fourfold.program.timeline import timeline
from fourfold_peer import Fourfold
from layout_cases import PIPELINES, Batch, LayoutWork, pipeline
from measure import on_fresh_ranks
from plain_llama import Shape

RANKS, WARMUP, STEPS = 2, 2, 7
BATCH = Batch(4, 256, 1)
COMPUTE = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
Durations = dict[tuple[Op, int, int], float]


class Clock:
    """An observer of one step: when computing began and ended, and how long each (op, stage, microbatch) took."""

    def __init__(self, stage_of: dict[str, int]) -> None:
        self.stage_of = stage_of
        self.durations: Durations = defaultdict(float)
        self.first: float | None = None
        self.last = self.before = time.perf_counter()

    def __call__(self, index: int, step: Instruction) -> None:
        now = time.perf_counter()
        if step.op in COMPUTE:
            self.first = self.before if self.first is None else self.first
            self.last = now
            self.durations[step.op, self.stage_of[step.segment], step.microbatch] += now - self.before
        self.before = now


def observe(rank: int, work: LayoutWork) -> dict[str, Any]:
    """Idle share of the pipeline, step by step, and what every stage's entries took."""
    peer = work.contender(work.case.label)
    stage_of = stages_by_segment(peer)
    idle, durations = [], defaultdict(list)
    for number in range(WARMUP + STEPS):
        tokens, targets = work.batch(rank, number)
        dist.barrier()
        clock = Clock(stage_of)
        peer.executor.run(peer.program, peer.data(tokens, targets), peer.learning_rate, clock)
        clocks: list[Any] = [None] * RANKS
        dist.all_gather_object(clocks, (clock.first, clock.last, dict(clock.durations)))
        if number < WARMUP:
            continue
        span = max(last for _, last, _ in clocks) - min(first for first, _, _ in clocks)
        busy = sum(sum(spent.values()) for _, _, spent in clocks)
        idle.append(1 - busy / (RANKS * span))
        for _, _, spent in clocks:
            for (op, stage, _), seconds in spent.items():
                durations[op, stage].append(seconds)
    medians = {key: statistics.median(values) for key, values in durations.items()}
    times = stage_times(medians, transfer_seconds(peer))
    predicted = timeline(CompiledStages(peer.spec).orders(peer.spec), peer.spec.layout.stage_ranks, times)
    return {"idle": idle, "predicted": predicted.bubble_fraction}


def stages_by_segment(peer: Fourfold) -> dict[str, int]:
    """The pipeline stage of every segment."""
    stages = [stage for stage, size in enumerate(peer.spec.layout.segments_per_stage) for _ in range(size)]
    return {segment.name: stage for segment, stage in zip(peer.spec.segments, stages, strict=True)}


def transfer_seconds(peer: Fourfold) -> float:
    """From the start of a send of hidden states until they are there: half a round trip."""
    group, spec = peer.groups["pp"], peer.spec
    buffer = torch.zeros(spec.layout.hidden_tokens, spec.model.hidden_size)
    seconds = []
    for _ in range(3 * STEPS):
        start = time.perf_counter()
        for sender in range(RANKS):
            move = group.send if group.index == sender else group.receive
            move(buffer, 1 - group.index).wait()
        seconds.append((time.perf_counter() - start) / RANKS)
    return statistics.median(seconds)


def stage_times(seconds: dict[tuple[Op, int], float], transfer: float) -> StageTimes:
    """Where backward is whole, all of it counts as input gradient."""
    stages = 1 + max(stage for _, stage in seconds)

    def column(*ops: Op) -> tuple[float, ...]:
        return tuple(next((seconds[op, s] for op in ops if (op, s) in seconds), 0.0) for s in range(stages))

    backward = column(Op.BACKWARD_INPUT, Op.BACKWARD)
    return StageTimes(column(Op.FORWARD), backward, column(Op.BACKWARD_WEIGHT), transfer)


def bubble_lines(shape: Shape) -> list[str]:
    """One line a schedule."""
    lines = []
    for schedule in PIPELINES:
        case = pipeline(shape, schedule, RANKS, BATCH)
        work = LayoutWork(shape, RANKS, global_batch=BATCH, case=case)
        result = on_fresh_ranks(work, partial(observe, work=work))
        idle = [100 * value for value in result["idle"]]
        predicted, measured = 100 * result["predicted"], statistics.median(idle)
        lines.append(
            f"bubble of {schedule}, {RANKS} ranks, {BATCH.sequences} microbatches: predicted {predicted:.1f} %, measured "
            f"{measured:.1f} % ({min(idle):.1f}–{max(idle):.1f}), {abs(measured - predicted):.1f} points apart"
        )
        print("  " + lines[-1], flush=True)
    return lines
