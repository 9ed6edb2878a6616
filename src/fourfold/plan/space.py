"""Which layouts there are: shapes of a replica, pipelines around them, data parallelism around those. All that go around one shape
are a table of parallel columns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourfold.layout.divisibility import (
    gemm_fault,
    max_stages,
    sequence_multiple,
    splits_experts,
    splits_heads,
    splits_tensors,
    splits_tokens,
    spreads_experts,
)
from fourfold.layout.mesh import ORDERS
from fourfold.model.low_precision import MULTIPLES
from fourfold.plan.candidate import BlockShape
from fourfold.plan.constraints import Constraints
from fourfold.plan.request import Request
from fourfold.program.schedule import BUILT_IN, find_schedule, usual_schedule
from fourfold.program.schedule.record import Idle, Schedule

MAX_TENSOR = 64
MAX_CONTEXT = 64
MICROBATCHES = (1, 2, 4, 8, 16)
MAX_STAGES_A_RANK = 16
RECOMPUTE = ("none", "selective", "full")
SEARCHED = sorted((s for s in BUILT_IN if s.searched), key=lambda s: (s.min_virtual_stages, s.is_v))
"""The simplest pipelines first: of layouts that look alike, the search keeps the first."""
Column = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Pipeline(NamedTuple):
    """Stages of a layout, and how they are run."""

    pp: int
    schedule: str
    virtual_stages: int

    @property
    def least_idle(self) -> Idle:
        """Idle time that no rank avoids, in forwards, backwards and weight gradients of all of a rank's stages."""
        forward, backward, weight = find_schedule(self.schedule).least_idle
        stages = self.virtual_stages
        return Idle(forward / stages, backward / stages, weight / stages)

    def in_flight(self, microbatches: float) -> float:
        """Microbatches whose activations, of a rank's own blocks, one rank holds at least."""
        return find_schedule(self.schedule).in_flight(self.pp, self.virtual_stages, microbatches)

    @property
    def is_v(self) -> bool:
        """Whether a rank's two stages lie on a V: the first rank holds the first and the last."""
        return find_schedule(self.schedule).is_v


def block_shapes(request: Request) -> Iterator[BlockShape]:
    """Every way to share one microbatch: tp x cp x ep x etp, the microbatch's size, the recompute policy."""
    model, devices, choices = request.model, request.devices, request.constraints.choices
    policies = RECOMPUTE if model.block is None else ("none", "full")
    for tp in choices("tp", _divisors(devices, MAX_TENSOR), {}):
        if devices % tp or not splits_tensors(model, tp):
            continue
        for cp in choices("cp", _divisors(devices // tp, MAX_CONTEXT), {"tp": tp}):
            if devices // tp % cp or not divides_sequence(request, tp, cp):
                continue
            for method in context_methods(request, tp, cp):
                for ep, etp in _expert_degrees(request, tp):
                    known = {"tp": tp, "cp": cp, "ep": ep, "etp": etp}
                    for microbatch in choices("microbatch_sequences", MICROBATCHES, known):
                        if request.global_sequences % microbatch or microbatch > request.global_sequences:
                            continue
                        if not divides_microbatch(request, tp, cp, microbatch):
                            continue
                        for policy in choices("recompute", policies, known):
                            yield BlockShape(tp, cp, method, ep, etp, microbatch, policy)


def divides_sequence(request: Request, tp: int, cp: int) -> bool:
    """Whether context parallelism divides a sequence, and tensor parallelism each part."""
    return cp == 1 or request.sequence_length % (sequence_multiple(cp) * tp) == 0


def divides_microbatch(request: Request, tp: int, cp: int, sequences: int) -> bool:
    """Whether a microbatch's tokens divide over the ranks that share it, with the scales of a low-precision format."""
    tokens = sequences * request.sequence_length // cp
    splits = splits_tokens(request.model, tokens, tp, request.sequence_parallel)
    return splits and not _cuts_scales(request, tp, cp, tokens)


def most_stages(request: Request, schedule: Schedule, pp: int) -> int:
    """The most stages that a rank of so many can have under a schedule."""
    segments = max_stages(request.model)
    return min(schedule.max_virtual_stages or segments // pp, segments // pp)


def _cuts_scales(request: Request, tp: int, cp: int, tokens: int) -> bool:
    """Whether numbers that share a scale would lie on several ranks."""
    recipe = request.precision.gemm_dtype
    if recipe is None:
        return False
    sizes = (tp, cp, request.sequence_length, tokens, request.sequence_parallel and tp > 1)
    return gemm_fault(request.model, MULTIPLES[recipe], *sizes) is not None


def context_methods(request: Request, tp: int, cp: int) -> list[str]:
    """The mixed method whose Ulysses groups are as large as a node allows (Fang & Zhao 2024): they exchange most."""
    stated: list[str] = request.constraints.choices("cp_method", (), {"cp": cp})
    if cp == 1:
        return ["ring"] if "ring" in stated or not request.constraints.states("cp_method") else []
    if request.model.block is not None:
        usual = ["all_gather"]
    else:
        model, inside = request.model, request.cluster.node_devices // tp
        degrees = [u for u in _divisors(cp, min(inside, cp - 1)) if u > 1 and splits_heads(model, tp, cp, u)]
        mixed = [
            f"ring+ulysses:{u}" for u in (*degrees[-1:], *_stated_ulysses(stated)) if splits_heads(model, tp, cp, u)
        ]
        every = ["ulysses"] if splits_heads(model, tp, cp, cp) else []
        usual = ["ring", "all_gather", *every, *dict.fromkeys(mixed)]
    return [method for method in request.constraints.choices("cp_method", usual, {"cp": cp}) if method in usual]


def _stated_ulysses(methods: Iterable[str]) -> list[int]:
    return [int(degree) for name, _, degree in (method.partition(":") for method in methods) if degree]


def _expert_degrees(request: Request, tp: int) -> Iterator[tuple[int, int]]:
    """Expert parallelism, with experts whole or split like the rest by tp."""
    model, choices = request.model, request.constraints.choices
    for ep in choices("ep", _divisors(model.num_experts, 1024) if model.num_experts else [1], {"tp": tp}):
        if ep == 1 and request.overlap_experts:
            continue
        for etp in choices("etp", [1, tp] if tp > 1 and model.num_experts else [1], {"tp": tp, "ep": ep}):
            if ep * etp == 1 or (
                model.num_experts and splits_experts(model, ep, etp) and spreads_experts(request.devices, ep, etp)
            ):
                yield ep, etp


def pipelines(request: Request, ranks: int) -> Iterator[Pipeline]:
    """Every division of `ranks` replicas' places into stages, with the schedules worth running."""
    segments, choices = max_stages(request.model), request.constraints.choices
    stated = request.constraints.states("virtual_stages")
    for pp in choices("pp", _divisors(ranks, segments), {}):
        if ranks % pp or pp > segments:
            continue
        usual = SEARCHED if pp > 1 else (usual_schedule(1),)
        for name in choices("schedule", [schedule.name for schedule in usual], {"pp": pp}):
            schedule = find_schedule(name)
            if pp == 1 and schedule not in usual:
                continue
            most = most_stages(request, schedule, pp) if pp > 1 else 1
            several = range(schedule.min_virtual_stages, min(most, MAX_STAGES_A_RANK) + 1)
            for stages in choices("virtual_stages", several, {"pp": pp}):
                if schedule.min_virtual_stages <= stages <= most and (stated or _worth(segments, pp, stages)):
                    yield Pipeline(pp, name, stages)


def _worth(segments: int, pp: int, stages: int) -> bool:
    """The least number of stages for every number of blocks a stage; and powers of two."""
    size = -(-segments // (pp * stages))
    return stages & (stages - 1) == 0 or -(-segments // (pp * (stages - 1))) > size


def shards(dp: int) -> list[int]:
    """Degrees over which ZeRO may shard within dp replicas: all, or a power of two or divisor that leaves few replicas."""
    return [d for d in _divisors(dp, dp) if d == dp or d >= 8 or d * 8 >= dp]


def _divisors(number: int, limit: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    found = sorted({*small, *(number // d for d in small)})
    return [d for d in found if d <= limit]


@dataclass(frozen=True)
class Arrangements:
    """Pipelines and data parallelism around a shape, in parallel columns."""

    pipelines: tuple[Pipeline, ...]
    pipeline: Indices
    dp: Column
    dp_shard: Column
    zero: Column
    microbatches: Column
    pp: Column
    virtual_stages: Column
    is_v: Column
    idle_forward: Column
    idle_backward: Column
    idle_weight: Column
    in_flight: Column

    @cached_property
    def degrees(self) -> tuple[Column, Indices]:
        """(numbers of shards that there are [degrees], which of them each row has [rows])."""
        return np.unique(self.dp_shard, return_inverse=True)


def arrangements(request: Request, shape: BlockShape) -> Arrangements | None:
    """Arrangements that go around a shape; None where the batch divides over none."""
    ranks, constraints = request.devices // (shape.cp * shape.tp), request.constraints
    if not constraints.choices("outermost", ORDERS, vars(shape)):
        return None
    found: list[Pipeline] = []
    usual: dict[int, list[tuple[int, int]]] = {}
    rows: list[tuple[float, ...]] = []
    for pipeline in pipelines(request, ranks):
        dp = ranks // pipeline.pp
        microbatches, rest = divmod(request.global_sequences, dp * shape.microbatch_sequences)
        if rest or (microbatches == 1 and request.overlap_experts):
            continue
        if constraints.limits or dp not in usual:
            known = vars(shape) | pipeline._asdict() | {"dp": dp, "left_over": microbatches % pipeline.pp}
            usual[dp] = list(_sharding(constraints, known, shape))
        stages = (pipeline.virtual_stages, pipeline.is_v)
        own = (microbatches, pipeline.pp, *stages, *pipeline.least_idle, pipeline.in_flight(microbatches))
        rows += [(len(found), dp, shard, zero, *own) for shard, zero in usual[dp]]
        found.append(pipeline)
    if not rows:
        return None
    pipeline_column, *columns = np.array(rows).T
    return Arrangements(tuple(found), pipeline_column.astype(int), *columns)


def _sharding(constraints: Constraints, known: dict[str, Any], shape: BlockShape) -> Iterator[tuple[int, int]]:
    """(dp_shard, ZeRO stage) within dp replicas. Without ZeRO the division means nothing, unless it is stated; without shards all
    stages are the same."""
    dp, stated = known["dp"], constraints.states("dp_shard", "dp_replicate")
    usual = shards(dp)
    if constraints.states("dp_replicate"):
        replicas: list[int] = constraints.choices("dp_replicate", (), known)
        usual = [dp // each for each in replicas if dp % each == 0]
    for shard in constraints.choices("dp_shard", usual, known):
        divided = {**known, "dp_shard": shard, "dp_replicate": dp // shard}
        spread = spreads_experts(shard * shape.cp * shape.tp, shape.ep, shape.etp)
        if dp % shard or not spread or not constraints.permits(divided):
            continue
        stages = constraints.choices("zero", (0, 1, 2, 3), divided)
        if shard * shape.cp == 1:
            stages = stages[:1] if dp == 1 or stated else [zero for zero in stages if zero == 0]
        yield from ((shard, zero) for zero in stages if zero or shard == dp or stated)
