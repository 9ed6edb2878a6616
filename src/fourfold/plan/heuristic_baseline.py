"""The heuristic baseline: what an experienced person would run without searching, the faster of two usual recipes.

FSDP: parameters sharded over all devices (ZeRO-3; Zhao et al. 2023), nothing else. Megatron: tensor or expert parallelism inside
the node, as many pipeline stages across nodes as memory needs and no more, ZeRO-1 over the rest (Narayanan et al. 2021,
takeaways 1 to 3), with at least as many microbatches as stages where the batch has them. Each is tried with recomputation of
nothing, some and all, and with a few sizes of a microbatch.
"""

import math
from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import islice

from fourfold.layout.divisibility import max_stages, splits_experts, splits_tensors
from fourfold.plan.bound import Bounder
from fourfold.plan.budget import SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.space import RECOMPUTE
from fourfold.program.schedule import usual_schedule

MICROBATCHES = (1, 2, 4, 8)
"""Sequences of a microbatch that are tried."""


def heuristic_baseline(
    request: Request, budget: SearchBudget | None = None, pricer: Pricer | None = None
) -> Priced | None:
    """The fastest of both recipes' layouts that fit and keep to the constraints, over recompute policies and microbatches; None if
    there is none, or the budget was spent before one was found. Those are simulated first whose bounds are the shortest, until no
    bound is shorter than the best step. `pricer`: of the same step."""
    pricer = (pricer or Pricer(request)).within(request, budget or SearchBudget(math.inf))
    bounder, choices = Bounder(request, blocks=pricer.blocks), request.constraints.choices
    recipes = [
        _possible(recipe(request, policy, sequences), bounder)
        for policy in choices("recompute", RECOMPUTE, {})
        for sequences in choices("microbatch_sequences", MICROBATCHES, {})
        for recipe in (_fsdp, _megatron)
    ]
    firsts = [(next(recipe, None), number) for number, recipe in enumerate(recipes)]
    queue = [(*each, number) for each, number in firsts if each is not None]
    queue.sort(key=lambda each: (each[0], each[2]))
    best: Priced | None = None
    while queue and not pricer.budget.is_spent and (best is None or queue[0][0] < best.seconds):
        _, candidate, number = queue.pop(0)
        priced = pricer.fitting(candidate, request.memory_bytes)
        if priced is not None:
            best = min(best or priced, priced, key=lambda each: each.seconds)
        elif (following := next(recipes[number], None)) is not None:
            insort(queue, (*following, number), key=lambda each: (each[0], each[2]))
    return best


def _possible(candidates: Iterable[Candidate], bounder: Bounder) -> Iterator[tuple[float, Candidate]]:
    """Candidates whose bound of memory fits, with the bound of their time; 0 where there is no bound."""
    for candidate in candidates:
        shape = candidate.shape
        bounds = bounder.bounds(shape)
        around = {name: value for name, value in vars(candidate).items() if name not in vars(shape)}
        if bounds is None or not len(rows := bounds.where(around)):
            yield 0.0, candidate
        elif rows.memory_bytes.min() <= bounder.request.memory_bytes:
            yield float(rows.seconds.min()), candidate


def _fsdp(request: Request, policy: str, sequences: int) -> Iterator[Candidate]:
    """The layout with all devices in one sharding group, where the batch has a microbatch for each."""
    if request.global_sequences % (request.devices * sequences) == 0:
        layout = _candidate(request, (1, 1, 1), 1, 3 if request.devices > 1 else 0, policy, sequences)
        if request.permits(layout):
            yield layout


def _megatron(request: Request, policy: str, sequences: int) -> Iterator[Candidate]:
    """Tensor or expert parallelism inside the node and the fewest stages first, each interleaved as far as the constraints let it
    be, with the first ZeRO stage that they let it have."""
    node, model, choices = request.cluster.node_devices, request.model, request.constraints.choices
    degrees = [d for d in range(1, min(node, request.devices) + 1) if request.devices % d == 0]
    experts = max((d for d in choices("ep", degrees, {}) if model.num_experts and splits_experts(model, d)), default=1)
    usual = [1] if model.num_experts else [d for d in degrees if splits_tensors(model, d)]
    tensor = max(
        (d for d in choices("tp", usual, {}) if request.devices % d == 0 and splits_tensors(model, d)), default=1
    )
    for pp in _stages(request, request.devices // tensor, sequences):
        most = max(1, min(4, max_stages(model) // pp)) if pp > 1 else 1
        shapes = ((virtual_stages, zero) for virtual_stages in range(most, 0, -1) for zero in (1, 2, 3, 0))
        layouts = (_candidate(request, (pp, tensor, experts), *shape, policy, sequences) for shape in shapes)
        yield from islice(filter(request.permits, layouts), 1)


def _stages(request: Request, ranks: int, sequences: int) -> list[int]:
    """Numbers of stages that divide the ranks and the batch, with two blocks a rank at least, as the deepest published pipelines
    have (64 ranks for 128 layers, Narayanan et al. 2021); those first that have as many microbatches as stages."""
    divisions: list[tuple[bool, int]] = []
    for pp in range(1, max(1, min(request.devices, request.model.num_layers // 2)) + 1):
        microbatches, rest = divmod(request.global_sequences * pp, ranks * sequences)
        if ranks % pp == 0 and rest == 0 and microbatches:
            divisions.append((microbatches < pp, pp))
    return [pp for _, pp in sorted(divisions)]


def _candidate(
    request: Request, degrees: tuple[int, int, int], virtual_stages: int, zero: int, policy: str, sequences: int
) -> Candidate:
    """`degrees`: of pipeline, tensor and expert parallelism."""
    pp, tensor, experts = degrees
    return Candidate(
        pp=pp,
        schedule=usual_schedule(virtual_stages).name,
        virtual_stages=virtual_stages,
        dp_replicate=1,
        dp_shard=request.devices // tensor // pp,
        zero=zero,
        cp=1,
        cp_method="ring",
        tp=tensor,
        ep=experts,
        etp=1,
        microbatch_sequences=sequences,
        recompute=policy,
        offload_optimizer=bool(request.offload_optimizer),
        overlap_experts=bool(request.overlap_experts),
    )
