"""Which of a search's constraints rule everything out: said of the keys themselves, by trying without them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fourfold.layout.mesh import ORDERS
from fourfold.plan.bound import Bounder
from fourfold.plan.constraints import KEYS, POLICIES, Limit, Value
from fourfold.plan.request import Request
from fourfold.plan.space import block_shapes
from fourfold.program.schedule import BUILT_IN

TRIED = (*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 256, 512, 1024)
"""Degrees that are tried for one that works."""
METHODS = ("ring", "all_gather", "ulysses")
SHOWN = 8


def has_layouts(request: Request) -> bool:
    """Whether any layout keeps to the constraints, whatever it holds."""
    bounder = Bounder(request)
    return any(bounder.arrangements(shape) is not None for shape in block_shapes(request))


def fits_at_all(request: Request) -> bool:
    """Whether any layout's bound of memory fits, with its optimizer states wherever they may be."""
    if request.states_may_leave:
        request = replace(request, offload_optimizer=True)
    bounder = Bounder(request)
    shapes = sorted(block_shapes(request), key=lambda s: (s.microbatch_sequences, s.recompute != "full", -s.tp))
    for shape in shapes:
        if shape.microbatch_sequences > shapes[0].microbatch_sequences:
            return False
        bounds = bounder.bounds(shape)
        if bounds is not None and (bounds.memory_bytes <= request.memory_bytes).any():
            return True
    return False


def contradiction(request: Request) -> str | None:
    """Why no layout keeps to the constraints: a smallest set of keys that no layout has together, and what one of them could be
    instead. None where there is no layout without them either."""
    kept = request.constraints.sources
    if not kept or not has_layouts(_without(request, kept)):
        return None
    for words in list(kept):
        others = {other: limits for other, limits in kept.items() if other != words}
        if not has_layouts(_keeping(request, others)):
            kept = others
    *together_with, last = sorted(kept, key=lambda words: kept[words][0].by, reverse=True)
    where = f"{request.global_sequences} sequences on {request.devices} devices"
    together = f"{last} rules out every layout of this model with {where}"
    if together_with:
        together = (
            f"no layout of this model with {where} goes with {' and '.join(together_with)} and with {last} at once"
        )
    works = _works(_keeping(request, kept), kept[last][0]) if not kept[last][0].by else []
    return together + (f"; values of {last.partition('=')[0]} that work: {', '.join(works)}" if works else "")


def _works(request: Request, limit: Limit) -> list[str]:
    """Values of a key with which a layout keeps to the other constraints."""
    usual: Mapping[str, Sequence[Value]] = {
        "schedule": [schedule.name for schedule in BUILT_IN],
        "cp_method": METHODS,
        "recompute": POLICIES,
        "outermost": tuple(ORDERS),
        "zero": (0, 1, 2, 3),
    }
    degrees = sorted({*TRIED, *(d for d in (request.devices,) if d <= TRIED[-1])})
    tried = usual.get(limit.key, degrees if limit.key in (*KEYS, "dp") else ())
    found = [value for value in tried if has_layouts(request.fixing({limit.key: value}))]
    return list(map(str, found[:SHOWN]))


def obstacles(request: Request) -> list[str]:
    """The constraints without one of which some layout's bound of memory fits, where none does with all."""
    sources = request.constraints.sources
    return [words for words, limits in sources.items() if fits_at_all(_without(request, {words: limits}))]


def _without(request: Request, sources: Mapping[str, Sequence[Limit]]) -> Request:
    gone = [limit for limits in sources.values() for limit in limits]
    return replace(request, constraints=request.constraints.without(gone))


def _keeping(request: Request, sources: Mapping[str, Sequence[Limit]]) -> Request:
    gone = {words: limits for words, limits in request.constraints.sources.items() if words not in sources}
    return _without(request, gone)
