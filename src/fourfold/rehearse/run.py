"""Every class of a layout's ranks, rehearsed, and compared with each other: what they call, and in which order."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from fourfold.config.optimizers import OptimizerSection
from fourfold.layout import Layout
from fourfold.layout.mesh import VIEWS
from fourfold.program import lower_pipeline
from fourfold.program.compiled import CompiledStages
from fourfold.program.lower import each_program
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView, rank_views
from fourfold.rehearse.graph import rehearse_graph
from fourfold.rehearse.journal import GroupCall, RehearsalFault, Wait
from fourfold.rehearse.rank import RankRehearsal, rehearse_rank
from fourfold.rehearse.shapes import KnownShapes

_AXES = ("dp_replicate", "dp_shard", "cp", "tp")
_TRANSFERS = ("send", "receive")


def rehearse(
    spec: StepSpec, optimizer: OptimizerSection, report: Callable[[RankRehearsal], None] = lambda result: None
) -> list[RankRehearsal]:
    """Rehearses a full step of one pipeline rank of each kind; and, with few microbatches, the first rank of every pipeline rank,
    one rank of each class, and an evaluation. Compares their calls. Returns a full step of every pipeline rank: see `extended`.
    Raises `RehearsalFault` at the first fault."""
    if spec.transport != "native":
        raise ValueError("a rehearsal is of CUDA devices: resolve the step with the transport `native`")
    short, shapes = shortened(spec), KnownShapes()
    firsts, others = class_ranks(spec)
    few = list(_rehearse(short, optimizer, [*firsts, *others], shapes, report=report))
    check_agreement(spec.layout, few)
    check_agreement(spec.layout, list(_rehearse(short, optimizer, firsts, shapes, "evaluate")))
    if short is spec:
        return few[: len(firsts)]
    kinds = [_kinds(view) for view in rank_views(spec)]
    examples = {kind: kinds.index(kind) for kind in kinds}
    full = dict(
        zip(
            examples,
            _rehearse(spec, optimizer, [firsts[i] for i in examples.values()], shapes, report=report),
            strict=True,
        )
    )
    check_agreement(spec.layout, list(full.values()))
    return [
        full[kind] if examples[kind] == pp_rank else extended(few[pp_rank], few[examples[kind]], full[kind])
        for pp_rank, kind in enumerate(kinds)
    ]


def rehearse_graphs(spec: StepSpec, optimizer: OptimizerSection) -> list[int]:
    """The operations of every pipeline rank's step, captured as a CUDA graph with few microbatches. Raises `RehearsalFault` where a
    replay would not be the next step."""
    short, shapes = shortened(spec), KnownShapes()
    compiled = CompiledStages(short)
    return [
        rehearse_graph(view, next(each_program(compiled, [view])), rank, optimizer, shapes)
        for view, rank in zip(compiled.views(short), class_ranks(short)[0], strict=True)
    ]


def extended(short: RankRehearsal, example: RankRehearsal, full: RankRehearsal) -> RankRehearsal:
    """A rank's full step from its `short` one: each further microbatch adds what it adds to a rank that holds the same kinds of
    segments, whose short step is `example`. Memory does not grow with further microbatches where the program's does not."""

    def grown(count: Callable[[RankRehearsal], int]) -> int:
        return count(short) + count(full) - count(example)

    waits = _waits(short)
    waits.update(_waits(full))
    waits.subtract(_waits(example))
    return replace(
        short,
        instructions=grown(lambda each: each.instructions),
        peak_bytes=grown(lambda each: each.peak_bytes),
        predicted_peak_bytes=grown(lambda each: each.predicted_peak_bytes),
        launches=grown(lambda each: each.launches),
        num_calls=grown(lambda each: each.num_calls),
        copies=grown(lambda each: each.copies),
        copied_bytes=grown(lambda each: each.copied_bytes),
        waits=tuple(waits.elements()),
        sent_bytes={
            axes: size + full.sent_bytes[axes] - example.sent_bytes[axes] for axes, size in short.sent_bytes.items()
        },
    )


def _waits(result: RankRehearsal) -> Counter[Wait]:
    """Waits of the host, those in instructions of a microbatch without the instruction."""
    return Counter(wait._replace(instruction="") if " m" in wait.instruction else wait for wait in result.waits)


def _kinds(view: RankView) -> Hashable:
    """Equal for pipeline ranks that hold the same kinds of segments, as many of each."""
    return tuple(sorted(Counter(map(str, _segment_kinds(view))).items())), view.tied_unit


def _segment_kinds(view: RankView) -> list[tuple[str, int, bool, str]]:
    return [(each.kind, each.layer_type, each.depth > 0, view.stages.policies[each.name]) for each in view.segments]


def _rehearse(
    spec: StepSpec,
    optimizer: OptimizerSection,
    ranks: Sequence[int],
    shapes: KnownShapes,
    kind: str = "train",
    report: Callable[[RankRehearsal], None] = lambda result: None,
) -> Iterator[RankRehearsal]:
    compiled = CompiledStages(spec)
    views = compiled.views(spec)
    programs = dict(enumerate(lower_pipeline(spec, kind, compiled))) if kind != "train" else {}
    for rank in ranks:
        pp_rank = spec.layout.coordinates(rank)["pp"]
        if pp_rank not in programs:
            programs[pp_rank] = next(each_program(compiled, [views[pp_rank]]))
        result = rehearse_rank(views[pp_rank], programs[pp_rank], rank, optimizer, shapes)
        report(result)
        yield result


def shortened(spec: StepSpec) -> StepSpec:
    """The step with as few microbatches as show every kind of place in the pipeline's order; itself where it has no more, or where
    a person's own schedule may be for its number alone."""
    few = 2 * spec.layout.pp
    if spec.layout.num_microbatches <= few or ":" in spec.layout.schedule:
        return spec
    return spec.with_microbatches(few)


def class_ranks(spec: StepSpec) -> tuple[list[int], list[int]]:
    """The first rank of every pipeline rank; and ranks that differ from it on one axis, second or last there. Pipeline ranks with
    the same kinds of segments share those of the first of them."""
    layout = spec.layout
    firsts: list[int] = []
    others: list[int] = []
    seen = set()
    for view in rank_views(spec):
        first = {"pp": view.pp_rank, **dict.fromkeys(_AXES, 0)}
        firsts.append(layout.rank_of(first))
        held = (frozenset(_segment_kinds(view)), view.tied_unit)
        if held in seen:
            continue
        seen.add(held)
        for axis in _AXES:
            last = layout.degree(axis) - 1
            others += [layout.rank_of({**first, axis: index}) for index in sorted({1, last}) if 0 < index <= last]
    return firsts, others


def check_agreement(layout: Layout, results: Sequence[RankRehearsal]) -> None:
    """Raises where two ranks of one group call it differently, or call two groups that they share in another order."""
    places = [layout.coordinates(result.rank) for result in results]
    for (one, own), (other, others) in combinations(zip(results, places, strict=True), 2):
        links = {call.link for call in one.calls}
        shared = {link for link in links if _share(layout, own, others, tuple(link.split("+")))}
        for index, (mine, theirs) in enumerate(_pairs(one, other, shared)):
            if mine != theirs:
                raise RehearsalFault(
                    f"ranks {one.rank} and {other.rank} differ at call {index} of the groups that they share: {_text(mine)} and "
                    f"{_text(theirs)}"
                )
        if "pp" in shared:
            _compare_transfers(layout, one, other)
            _compare_transfers(layout, other, one)


def _share(layout: Layout, own: Mapping[str, int], other: Mapping[str, int], axes: tuple[str, ...]) -> bool:
    """Whether two ranks at these coordinates are in one group along the axes."""
    if "tied" in axes:
        axes = (*axes, "pp")
        if not {own["pp"], other["pp"]} <= set(layout.tied_ranks):
            return False
    view = next(view for view in VIEWS if set(axes) <= {*view, "tied"})
    return all(own[axis] == other[axis] for axis in view if axis not in axes)


def _pairs(
    one: RankRehearsal, other: RankRehearsal, links: set[str]
) -> Iterator[tuple[GroupCall | None, GroupCall | None]]:
    mine, theirs = ([c for c in each.calls if c.link in links and c.kind not in _TRANSFERS] for each in (one, other))
    for index in range(max(len(mine), len(theirs))):
        yield (mine[index] if index < len(mine) else None), (theirs[index] if index < len(theirs) else None)


def _compare_transfers(layout: Layout, one: RankRehearsal, other: RankRehearsal) -> None:
    """Between two pipeline ranks, sends and receives pair up in the order in which each starts them."""

    def between(result: RankRehearsal, kind: str, peer: int) -> list[tuple[str, int, bool]]:
        calls = (c for c in result.calls if c.kind == kind and layout.coordinates(c.peer)["pp"] == peer)
        return [(call.dtype, call.numel, call.upwards) for call in calls]

    for upwards in (False, True):
        sent, received = between(one, "send", other.pp_rank), between(other, "receive", one.pp_rank)
        sent, received = ([c for c in calls if c[2] == upwards] for calls in (sent, received))
        if sent != received:
            raise RehearsalFault(
                f"rank {one.rank} sends {len(sent)} transfers to rank {other.rank} {'up' if upwards else 'down'}, which receives "
                f"{len(received)}, or others"
            )


def _text(call: GroupCall | None) -> str:
    return "none" if call is None else f"{call.kind} over {call.link} of {call.numel} {call.dtype}"
