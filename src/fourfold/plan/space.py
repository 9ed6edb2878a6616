"""Which layouts there are: shapes of a replica, pipelines around them, data parallelism around those."""

from collections.abc import Iterator
from dataclasses import dataclass

from fourfold.config import ModelConfig
from fourfold.layout.divisibility import (
    max_stages,
    sequence_multiple,
    splits_experts,
    splits_heads,
    splits_tensors,
    splits_tokens,
    spreads_experts,
)
from fourfold.plan.candidate import BlockShape
from fourfold.plan.request import Request
from fourfold.program.schedule import BUILT_IN, find_schedule, usual_schedule
from fourfold.program.schedule.record import Idle

MAX_TENSOR = 64
MAX_CONTEXT = 64
MAX_MICROBATCH = 16
MAX_STAGES_A_RANK = 16
RECOMPUTE = ("none", "selective", "full")
_SEARCHED = sorted((s for s in BUILT_IN if s.searched), key=lambda s: (s.min_virtual_stages, s.is_v))
"""The simplest pipelines first: of layouts that look alike, the search keeps the first."""


@dataclass(frozen=True)
class Pipeline:
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
    model, devices = request.model, request.devices
    for tp in _divisors(devices, MAX_TENSOR):
        if not splits_tensors(model, tp):
            continue
        for cp in _divisors(devices // tp, MAX_CONTEXT):
            if cp > 1 and request.sequence_length % (sequence_multiple(cp) * tp):
                continue
            for method in _context_methods(request, tp, cp):
                for ep, etp in _expert_degrees(model, devices, tp):
                    for microbatch in (1, 2, 4, 8, 16):
                        if request.global_sequences % microbatch or microbatch > request.global_sequences:
                            continue
                        tokens = microbatch * request.sequence_length // cp
                        if not splits_tokens(model, tokens, tp, sequence_parallel=True):
                            continue
                        for policy in RECOMPUTE if model.block is None else ("none", "full"):
                            yield BlockShape(tp, cp, method, ep, etp, microbatch, policy)


def _context_methods(request: Request, tp: int, cp: int) -> list[str]:
    """The mixed method whose Ulysses groups are as large as a node allows (Fang & Zhao 2024): they exchange most."""
    if cp == 1:
        return ["ring"]
    if request.model.block is not None:
        return ["all_gather"]
    model, inside = request.model, request.cluster.node_devices // tp
    degrees = [u for u in _divisors(cp, min(inside, cp - 1)) if u > 1 and splits_heads(model, tp, cp, u)]
    mixed = [f"ring+ulysses:{u}" for u in degrees[-1:]]
    return ["ring", "all_gather", *(["ulysses"] if splits_heads(model, tp, cp, cp) else []), *mixed]


def _expert_degrees(model: ModelConfig, devices: int, tp: int) -> list[tuple[int, int]]:
    """Expert parallelism, with experts whole or split like the rest by tp."""
    if not model.num_experts:
        return [(1, 1)]
    pairs = [(ep, etp) for ep in _divisors(model.num_experts, 1024) for etp in ((1, tp) if tp > 1 else (1,))]
    return [(ep, etp) for ep, etp in pairs if splits_experts(model, ep, etp) and spreads_experts(devices, ep, etp)]


def pipelines(request: Request, ranks: int) -> Iterator[Pipeline]:
    """Every division of `ranks` replicas' places into stages, with the schedules worth running."""
    segments = max_stages(request.model)
    for pp in _divisors(ranks, segments):
        if pp == 1:
            yield Pipeline(1, usual_schedule(1).name, 1)
            continue
        for schedule in _SEARCHED:
            most = min(schedule.max_virtual_stages or MAX_STAGES_A_RANK, MAX_STAGES_A_RANK, segments // pp)
            for stages in range(schedule.min_virtual_stages, most + 1):
                if _worth(segments, pp, stages):
                    yield Pipeline(pp, schedule.name, stages)


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
