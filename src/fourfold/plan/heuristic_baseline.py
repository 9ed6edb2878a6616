"""The heuristic baseline: what an experienced person would run without searching, the faster of two usual recipes.

FSDP: parameters sharded over all devices (ZeRO-3; Zhao et al. 2023), nothing else. Megatron: tensor or expert parallelism inside
the node, as many pipeline stages across nodes as memory needs and no more, ZeRO-1 over the rest (Narayanan et al. 2021,
takeaways 1 to 3), with at least as many microbatches as stages where the batch has them. Each is tried with recomputation of
nothing, some and all, and with a few sizes of a microbatch.
"""

from collections.abc import Iterable, Iterator
from itertools import islice, product

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


def heuristic_baseline(request: Request, budget: SearchBudget | None = None) -> Priced | None:
    """The fastest of both recipes' layouts that fit and keep to the constraints, over recompute policies and microbatches; None if
    there is none, or the budget was spent before one was found."""
    bounder, pricer, fitting = Bounder(request), Pricer(request, budget), list[Priced]()
    choices = request.constraints.choices
    for policy, sequences in product(
        choices("recompute", RECOMPUTE, {}), choices("microbatch_sequences", MICROBATCHES, {})
    ):
        for recipe in (_fsdp(request, policy, sequences), _megatron(request, policy, sequences)):
            found = _first_that_fits(recipe, bounder, pricer)
            if found is not None:
                fitting.append(found)
    return min(fitting, key=lambda each: each.seconds, default=None)


def _first_that_fits(candidates: Iterable[Candidate], bounder: Bounder, pricer: Pricer) -> Priced | None:
    limit = pricer.request.memory_bytes
    for candidate in candidates:
        if _least_bytes(bounder, candidate) > limit:
            continue
        if pricer.budget.is_spent:
            return None
        found = pricer.price(candidate)
        if isinstance(found, Priced) and found.memory_bytes <= limit:
            return found
    return None


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
    """Numbers of stages that divide the ranks and the batch, those first that have as many microbatches as stages."""
    divisions: list[tuple[bool, int]] = []
    for pp in range(1, min(request.devices, max_stages(request.model)) + 1):
        microbatches, rest = divmod(request.global_sequences * pp, ranks * sequences)
        if ranks % pp == 0 and rest == 0 and microbatches:
            divisions.append((microbatches < pp, pp))
    return [pp for _, pp in sorted(divisions)]


def _least_bytes(bounder: Bounder, candidate: Candidate) -> float:
    """Lower bound of a device's memory; 0 where there is no bound."""
    shape = candidate.shape
    bounds = bounder.bounds(shape)
    of = {name: value for name, value in vars(candidate).items() if name not in vars(shape)}
    if bounds is None or not len(rows := bounds.where(of)):
        return 0.0
    return float(rows.memory_bytes.min())


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
    )
