"""Which layouts there are: shapes of a replica, pipelines around them, data parallelism around those."""

from collections.abc import Iterator
from dataclasses import dataclass

from fourfold.config import ModelConfig
from fourfold.plan.candidate import BlockShape
from fourfold.plan.request import Request
from fourfold.program.schedule.fixed import V_SHAPED

MAX_TENSOR = 64
MAX_CONTEXT = 64
MAX_MICROBATCH = 16
MAX_STAGES_A_RANK = 16
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Pipeline:
    """Stages of a layout, and the time that no order of this schedule can avoid to idle: (pp - 1) times `forward_fill` of a rank's
    forward of one microbatch and `backward_fill` of its backward, less `weight_fill` of its weight gradients, but never less
    than the forward's part (papers of each schedule)."""

    pp: int
    schedule: str
    virtual_stages: int
    forward_fill: float
    backward_fill: float
    weight_fill: float = 0.0

    def in_flight(self, microbatches: float) -> float:
        """Microbatches whose activations, of a rank's own blocks, one rank holds at least."""
        if self.schedule == "interleaved_1f1b":
            return min(microbatches, self.pp * (1 + (self.pp - 1) / (self.pp * self.virtual_stages)))
        return min(microbatches, 2 * self.pp - 1 if self.schedule == "zb_h2" else self.pp)

    @property
    def is_v(self) -> bool:
        """Whether a rank's two stages lie on a V: the first rank holds the first and the last."""
        return self.schedule in V_SHAPED


def block_shapes(request: Request) -> Iterator[BlockShape]:
    """Every way to share one microbatch: tp x cp x ep x etp, the microbatch's size, the recompute policy."""
    model, devices = request.model, request.devices
    for tp in _divisors(devices, MAX_TENSOR):
        if not splits_tensors(model, tp):
            continue
        for cp in _divisors(devices // tp, MAX_CONTEXT):
            if cp > 1 and request.sequence_length % (2 * cp * (tp if tp > 1 else 1)):
                continue
            for method in _context_methods(request, tp, cp):
                for ep, etp in _expert_degrees(model, devices, tp):
                    for microbatch in (1, 2, 4, 8, 16):
                        if request.global_sequences % microbatch or microbatch > request.global_sequences:
                            continue
                        if tp > 1 and (microbatch * request.sequence_length // cp) % tp:
                            continue
                        for policy in RECOMPUTE:
                            yield BlockShape(tp, cp, method, ep, etp, microbatch, policy)


def splits_tensors(model: ModelConfig, tp: int) -> bool:
    """Whether heads, vocabulary and feed-forwards divide by tp."""
    kv = model.num_heads if model.is_latent else model.num_kv_heads
    sizes = [model.num_heads, model.vocab_size]
    if model.has_dense_blocks:
        sizes.append(model.ffn_size)
    if model.num_shared_experts:
        sizes.append(model.num_shared_experts * model.moe_ffn_size)
    return all(size % tp == 0 for size in sizes) and (kv % tp == 0 or tp % kv == 0)


def _context_methods(request: Request, tp: int, cp: int) -> list[str]:
    """Of the mixed ones that whose Ulysses groups are as large as a node allows (Fang & Zhao 2024): they exchange most."""
    if cp == 1:
        return ["ring"]
    heads, inside = request.model.num_heads // tp, request.cluster.node_devices // tp
    mixed = [f"ring+ulysses:{u}" for u in _divisors(cp, min(inside, cp - 1)) if u > 1 and heads % u == 0]
    return ["ring", "all_gather", *(["ulysses"] if heads % cp == 0 else []), *mixed[-1:]]


def _expert_degrees(model: ModelConfig, devices: int, tp: int) -> list[tuple[int, int]]:
    """Expert parallelism, with experts whole or split like the rest by tp."""
    if not model.num_experts:
        return [(1, 1)]
    degrees = [ep for ep in _divisors(model.num_experts, 1024) if devices % ep == 0]
    split = [tp] if tp > 1 and model.moe_ffn_size % tp == 0 else []
    return [(ep, etp) for ep in degrees for etp in (1, *split) if devices % (ep * etp) == 0]


def pipelines(request: Request, ranks: int) -> Iterator[Pipeline]:
    """Every division of `ranks` replicas' places into stages, with the schedules worth running."""
    segments = request.model.num_layers + 2
    for pp in _divisors(ranks, segments):
        if pp == 1:
            yield Pipeline(1, "1f1b", 1, 0.0, 0.0)
            continue
        yield Pipeline(pp, "1f1b", 1, 1.0, 1.0)
        yield Pipeline(pp, "zb_h1", 1, 1.0, 1.0, 2.0)
        yield Pipeline(pp, "zb_h2", 1, 1.0, 0.0)
        for stages in range(2, MAX_STAGES_A_RANK + 1):
            if pp * stages <= segments and _worth(segments, pp, stages):
                yield Pipeline(pp, "interleaved_1f1b", stages, 1 / stages, 1 / stages)
        if 2 * pp <= segments:
            yield from (Pipeline(pp, schedule, 2, 0.5, 0.0) for schedule in V_SHAPED)


def _worth(segments: int, pp: int, stages: int) -> bool:
    """Of the numbers of stages that give a stage the same number of blocks, the least; and powers of two."""
    size = -(-segments // (pp * stages))
    return stages & (stages - 1) == 0 or -(-segments // (pp * (stages - 1))) > size


def shards(dp: int) -> list[int]:
    """Degrees over which ZeRO may shard within dp replicas: all, or a power of two or divisor that leaves few replicas."""
    return [d for d in _divisors(dp, dp) if d == dp or d >= 8 or d * 8 >= dp]


def _divisors(number: int, limit: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    found = sorted({*small, *(number // d for d in small)})
    return [d for d in found if d <= limit]
