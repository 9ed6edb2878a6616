"""Keep, recompute or offload: what each block does with its activations, and where optimizer states lie, chosen together under the
memory limit.

A pipeline rank that has too much chooses for its blocks what costs the fewest seconds for the bytes that it lacks. Seconds are
those of the forward that runs again, or of copies that computation does not hide; bytes are those by which the programs' peaks
differ. The programs then say whether it fits; what they lack is asked for again. The states of all ranks stay or leave, whichever
costs less with its best choice for the blocks: their copies run around the update alone, behind the last computation, so that they
never share the link with those of activations. Only fourfold's own software offloads.

Where another trainer is to run the layout, the first blocks alone recompute. The first stages hold the most microbatches, so that
this is what a 1F1B pipeline needs least of.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fourfold.cost.prices import Prices
from fourfold.model.spec import Segment
from fourfold.plan.candidate import Candidate, policy_and_offload
from fourfold.plan.moves.knapsack import Option, cheapest
from fourfold.plan.pricing import Priced, Pricer, candidate_spec
from fourfold.plan.request import Request
from fourfold.program.capabilities import buffer_bytes
from fourfold.program.footprints import Footprints
from fourfold.program.sizes import state_buffers
from fourfold.program.spec import StepSpec
from fourfold.program.stage_map import stage_map
from fourfold.program.view import RankView, rank_views
from fourfold.simulate.durations import Durations
from fourfold.simulate.step import Simulation

WAYS = ("none", "selective", "full", "offload", "selective+offload")
"""Ways of a block with its activations, the later the earlier in a rank blocks take them."""
EVEN = (("none", "offload"), ("selective", "selective+offload"))
"""Ways of which all blocks may have either and recompute the same."""
PROBES = 3
"""Choices whose programs are asked whether they fit."""
FREE, NEAR = 0.001, 0.01
"""Shares of a step: what a choice costs that needs no other beside it, and how far apart two may be said to be of which either may
be the better."""
ROOM = 0.97
"""Share of the host's memory that offloaded activations may take beside what else lies there."""
ROUNDED = 0.45
"""Share of that room which offloaded activations fill for certain when pinned memory is rounded to powers of two."""
NEEDLESS = 1e-3
"""Share of a copy's time that it is taken to cost where computation hides it, so that no more is copied than is needed."""
LOOSE = 0.5
"""Share of the room that a first choice leaves which a cheaper one is to take: peaks move."""
WORTH = 0.001
"""Share of a step that cheaper ways have to gain for their programs to be asked whether they fit."""
MARGIN = 1.02
"""Times the bytes that were lacking are asked for again."""
HALVINGS = 4
"""Programs a layout: N is found to within a sixteenth of the blocks."""


def freed_and_seconds(view: RankView, prices: Prices) -> tuple[int, float]:
    """Bytes of optimizer states that a pipeline rank's devices no longer hold while they compute, and the seconds by which its step
    gets longer.

    A unit is updated when its states are there and those of the unit before are gone; those of the next unit start then
    (`program/offload.py`)."""
    spec, flats = view.spec, view.flats
    sizes = [sum(buffer_bytes(view, each) for each in state_buffers(view, unit)) for unit in flats]
    copies = [prices.host_copy(size) for size in sizes]
    updates = [prices.memory(spec.update_bytes(flat.shard_numel, flat.matrix_numel)) for flat in flats.values()]
    gone, there = 0.0, copies[0]
    for update, copy, following in zip(updates, copies, [*copies[1:], 0.0], strict=True):
        starts = max(gone, there)
        there, gone = starts + following, starts + update + copy
    return sum(sizes), gone - sum(updates)


class _Start(NamedTuple):
    """All blocks keep their activations: `lacking` bytes of every pipeline rank; `seconds` by which it is slower; `room_bytes` of
    the host's memory for what a device offloads; `ways` that blocks may take."""

    layout: Candidate
    lacking: list[float]
    seconds: float
    room_bytes: float
    ways: tuple[str, ...] = WAYS

    def taking(self, ways: Sequence[str]) -> Candidate:
        """The layout with these ways of its blocks."""
        return replace(self.layout, activations=tuple(ways) if set(ways) != {"none"} else ())


def mixed(pricer: Pricer, layout: Candidate) -> Priced | None:
    """The layout with the cheapest way of each block that makes it fit: any of those that fourfold runs, or the first blocks
    recomputed, where another trainer is to run it; as it is where that fits. None where no choice makes it fit."""
    kept = replace(layout, recompute="none", activations=())
    if pricer.fits(kept):
        priced = pricer.price(kept)
        return priced if isinstance(priced, Priced) else None
    return chosen_together(pricer, kept) or made_to_fit(pricer, kept)


def chosen_together(pricer: Pricer, candidate: Candidate) -> Priced | None:
    """The layout with the cheapest choice for each of its blocks, and for its optimizer states where that is open, that makes it
    fit; None where none does, where it needs no choice, and where a person or the trainer's limits choose."""
    request = pricer.request
    if not request.software.is_own or request.constraints.states("recompute") or request.model.block:
        return None
    if any(limit.by for limit in request.constraints.limits):
        return None
    stays = replace(candidate, recompute="none", activations=(), offload_optimizer=bool(request.offload_optimizer))
    blocks = request.model.num_layers
    ways = [way for way in WAYS if "offload" not in way or (request.offload and request.can_offload)]
    none, full = pricer.held(stays), pricer.held(replace(stays, activations=("full",) * blocks))
    if none is None or full is None or max(none) <= request.memory_bytes:
        return None
    spec = candidate_spec(request, stays)
    knapsack = _Knapsack(request, spec, ways, none, full)
    lacking = [max(0.0, each - request.memory_bytes) for each in none]
    starts = [_Start(stays, lacking, 0.0, request.host_bytes)]
    if request.states_may_leave:
        starts.append(_away(request, spec, starts[0]))
    if request.host_bytes < float("inf"):
        starts += [start._replace(room_bytes=ROUNDED * start.room_bytes) for start in starts]
    step = pricer.timeline(stays, 0.0)
    chosen = [
        (begun, first, (step + begun.seconds + first.seconds) * pricer.outlook.weight(begun.taking(first.ways)))
        for start in starts
        for begun, first in _first_choices(knapsack, start)
    ]
    best, least = None, 0.0
    for start, first, score in sorted(chosen, key=lambda each: each[2]):
        if best is not None and not _may_be_better(score, least, step):
            break
        found = _fitting(pricer, knapsack, start, first)
        if found is not None:
            best, least = min(filter(None, (best, found)), key=lambda each: each.score), least or score
    return best


def _first_choices(knapsack: "_Knapsack", start: _Start) -> "Iterator[tuple[_Start, _Chosen]]":
    """Choices that are enough, by what is estimated: the cheapest of all ways; where that mixes policies, that of each alone, which
    is one feature less."""
    first = knapsack.solved(start.lacking, start.room_bytes, start.ways)
    if first is None:
        return
    yield start, first
    if len({policy_and_offload(way)[0] for way in first.ways}) > 1:
        for policy in EVEN:
            even = start._replace(ways=policy)
            other = knapsack.solved(even.lacking, even.room_bytes, policy)
            if other is not None:
                yield even, other


def _may_be_better(score: float, least: float, step: float) -> bool:
    """Whether a choice of this estimated score may be better than that of the `least`, which was simulated; `step`: seconds of one
    in which all blocks keep their activations."""
    return least - step > FREE * step and score - least < NEAR * step


def _away(request: Request, spec: StepSpec, stays: _Start) -> _Start:
    """The start with optimizer states in the host's memory."""
    prices, more = request.prices(spec.layout), 1 + request.software.fragmentation
    freed, seconds = zip(*(freed_and_seconds(view, prices) for view in rank_views(spec)), strict=True)
    lacking = [max(0.0, each - more * size) for each, size in zip(stays.lacking, freed, strict=True)]
    return _Start(replace(stays.layout, offload_optimizer=True), lacking, max(seconds), stays.room_bytes - max(freed))


def _fitting(pricer: Pricer, knapsack: "_Knapsack", start: _Start, first: "_Chosen") -> Priced | None:
    """With the cheapest ways whose programs fit: what those of the `first` lack is asked for again."""
    lacking, most, chosen = start.lacking, pricer.request.memory_bytes, first
    for _ in range(PROBES):
        found = start.taking(chosen.ways)
        now = pricer.held(found)
        if now is None:
            return None
        over = [each - most for each in now]
        if max(over) <= 0:
            priced = pricer.price(_loosened(pricer, knapsack, (start, found, chosen), lacking, over))
            return priced if isinstance(priced, Priced) else None
        lacking = [before + max(0.0, MARGIN * more) for before, more in zip(lacking, over, strict=True)]
        following = knapsack.solved(lacking, start.room_bytes, start.ways)
        if following is None:
            return None
        chosen = following
    return None


def _loosened(
    pricer: Pricer,
    knapsack: "_Knapsack",
    fitting: "tuple[_Start, Candidate, _Chosen]",
    lacking: Sequence[float],
    over: Sequence[float],
) -> Candidate:
    """A layout that fits, with cheaper ways where it holds so much less than it may that these may fit too."""
    start, found, chosen = fitting
    less = [max(0.0, a + LOOSE * b) for a, b in zip(lacking, over, strict=True)]
    looser = knapsack.solved(less, start.room_bytes, start.ways)
    if looser is None or chosen.seconds - looser.seconds < WORTH * pricer.timeline(start.layout, 0.0):
        return found
    other = start.taking(looser.ways)
    now = pricer.held(other)
    return other if now is not None and max(now) <= pricer.request.memory_bytes else found


class _Chosen(NamedTuple):
    """One way for every block of the model, in order, and the seconds by which the pipeline rank that is then the busiest computes
    longer than the busiest did."""

    ways: tuple[str, ...]
    seconds: float


class _Knapsack:
    """The choice of ways. `none`, `full`: what every pipeline rank's devices hold if all blocks keep their activations, or
    recompute them. A block that offloads spares as much as one that recomputes; one that rebuilds some, in the proportion of its
    bytes."""

    def __init__(
        self, request: Request, spec: StepSpec, ways: Sequence[str], none: Sequence[int], full: Sequence[int]
    ) -> None:
        self._stages = stage_map(spec)
        self._costs = costs = WaysToSpare(spec, request.prices(spec.layout), Footprints(spec.model, spec.shape))
        self._held = {way: none if way == "none" else full for way in ways}
        if "selective" in ways:
            blocks = [each for each in self._stages.segments.values() if _chooses(each)]
            kept = sum(costs.saved(each, "selective") for each in blocks) / sum(costs.saved(each) for each in blocks)
            self._held["selective"] = [round(kept * a + (1 - kept) * b) for a, b in zip(none, full, strict=True)]
        busy = [sum(costs.kept_seconds(each) for each in self._of(rank)) for rank in range(len(none))]
        self._spare = [max(busy) - each for each in busy]

    def _of(self, rank: int) -> list[Segment]:
        """The segments of a pipeline rank."""
        return [each for stage in self._stages.held(rank) for each in self._stages.stages[stage]]

    def _own(self, rank: int) -> list[Segment]:
        """The segments of a pipeline rank that choose."""
        return [each for each in self._of(rank) if _chooses(each)]

    def solved(self, lacking: Sequence[float], room_bytes: float, ways: Sequence[str]) -> _Chosen | None:
        """The cheapest of some ways that spare every pipeline rank the bytes that it lacks; None where none do. `room_bytes`: of
        the host's memory for what a device offloads."""
        found: dict[str, str] = {}
        slowest = 0.0
        for rank, needed in enumerate(lacking):
            choices = filter(None, self._choices(rank, needed, room_bytes, ways))
            chosen = min(choices, key=lambda each: each[0], default=None)
            if chosen is None:
                return None
            slowest = max(slowest, chosen[0] - self._spare[rank])
            found.update(chosen[1])
        return _Chosen(tuple(found[name] for name, each in self._stages.segments.items() if _chooses(each)), slowest)

    def _choices(
        self, rank: int, needed: float, room_bytes: float, permitted: Sequence[str]
    ) -> Iterator[tuple[float, dict[str, str]] | None]:
        """Seconds and ways of the blocks of a rank: with any of those permitted, of which as many blocks may offload as the host
        has room for if they offload most; with those alone that offload less."""
        ways = [way for way in self._held if way in permitted]
        yield self._choice(rank, needed, ways, self._most_away(rank, "offload", room_bytes))
        if room_bytes < float("inf") and "selective+offload" in ways:
            yield self._choice(
                rank,
                needed,
                [way for way in ways if way != "offload"],
                self._most_away(rank, "selective+offload", room_bytes),
            )

    def _most_away(self, rank: int, way: str, room_bytes: float) -> int:
        """How many blocks of a rank the host's memory has room for, if they offload so."""
        own = self._own(rank)
        if way not in self._held or room_bytes == float("inf"):
            return len(own)
        kept = [self._costs.saved(each) for each in own]
        # where all recompute, those of one block are there while it does
        size = float(self._held["none"][rank] - self._held["full"][rank] + max(kept, default=0))
        if way != "offload":
            size *= sum(self._costs.saved(each, "selective") for each in own) / max(1, sum(kept))
        return max(0, min(len(own), int(ROOM * room_bytes * len(own) / max(1, size))))

    def _choice(
        self, rank: int, needed: float, ways: Sequence[str], most_away: int
    ) -> tuple[float, dict[str, str]] | None:
        """Seconds and the cheapest of these ways of the blocks of a rank that spare so many bytes, `most_away` of which, the first
        ones, may offload."""
        own, costs, held = self._own(rank), self._costs, self._held
        total = sum(costs.saved(each) for each in own)
        options = []
        for number, each in enumerate(own):
            share = costs.saved(each) / total
            allowed = [way for way in ways if "offload" not in way or number < most_away]
            options.append(
                tuple(
                    Option(costs.seconds(each, way), share * (held["none"][rank] - held[way][rank])) for way in allowed
                )
            )
        places = cheapest(options, needed)
        if places is None:
            return None
        seconds = sum(each[place].seconds for each, place in zip(options, places, strict=True))
        return seconds, {each.name: ways[place] for each, place in zip(own, places, strict=True)}


def _chooses(segment: Segment) -> bool:
    """Blocks do, but for those of MTP modules, which go as the last one."""
    return segment.kind == "block" and not segment.depth


class WaysToSpare:
    """The cost to a block of a step of not keeping its activations on the device."""

    def __init__(self, spec: StepSpec, prices: Prices, footprints: Footprints) -> None:
        self._microbatches, self._ahead = spec.layout.num_microbatches, spec.layout.prefetch
        self._durations, self._prices, self._footprints = Durations(prices), prices, footprints

    def saved(self, segment: Segment, way: str = "none") -> int:
        """Bytes that the device then keeps of one microbatch."""
        return self._footprints.of(segment, way).saved_bytes if way in ("none", "selective") else 0

    def kept_seconds(self, segment: Segment) -> float:
        """Seconds of a step in which the segment computes, its activations kept."""
        plain = self._footprints.of(segment, "none")
        return self._microbatches * sum(self._durations.work(work).seconds for work in (plain.forward, plain.backward))

    def seconds(self, segment: Segment, way: str) -> float:
        """Seconds by which a step gets longer: of a forward that runs again; of what is rebuilt; of copies of which no more than
        `layout.prefetch` computations of such blocks run beside each."""
        plain = self._footprints.of(segment, "none")
        forward, backward = (self._durations.work(work).seconds for work in (plain.forward, plain.backward))
        policy, away = policy_and_offload(way)
        kept = self._footprints.of(segment, policy)
        more = forward if policy == "full" else max(0.0, self._durations.work(kept.backward).seconds - backward)
        if away:
            copy = self._prices.host_copy(kept.saved_bytes)
            more += max(0.0, copy - self._ahead * forward) + max(0.0, copy - self._ahead * backward) + NEEDLESS * copy
        return self._microbatches * more


def seconds_per_gigabyte(simulation: Simulation, num_microbatches: int) -> dict[str, float]:
    """By way, the seconds of a step that a gigabyte (1e9 bytes) spared of activations costs on the fullest pipeline rank: of its
    first block, which has activations of as many microbatches at once as it has inputs at the peak. Empty where it has none."""
    peaks, spec = simulation.peaks, simulation.spec.with_microbatches(num_microbatches)
    fullest = max(range(len(peaks)), key=lambda rank: peaks[rank].bytes)
    view = simulation.views[fullest]
    block = next((each for each in view.segments if _chooses(each)), None)
    if block is None:
        return {}
    inputs = [name for name, _ in peaks[fullest].buffers if name.startswith(f"hidden/{block.name}/")]
    costs = WaysToSpare(spec, simulation.prices, view.footprints)
    kept = costs.saved(block)
    spared = {way: max(1, len(inputs)) * (kept - costs.saved(block, way)) / 1e9 for way in WAYS[1:]}
    return {way: costs.seconds(block, way) / size for way, size in spared.items() if size > 0}


def states_per_gigabyte(simulation: Simulation) -> float | None:
    """Seconds of a step that a gigabyte of optimizer states in the host's memory costs on the fullest pipeline rank; None where
    they are there, or have nowhere else to be."""
    view = max(zip(simulation.peaks, simulation.views, strict=True), key=lambda each: each[0].bytes)[1]
    if view.spec.layout.offload_optimizer or not simulation.prices.cluster.device.has_host_link:
        return None
    freed, seconds = freed_and_seconds(view, simulation.prices)
    return 1e9 * seconds / freed if freed else None


def made_to_fit(pricer: Pricer, too_large: Candidate) -> Priced | None:
    """A layout that does not fit without recomputation, with as little of it as makes it fit; None where none does."""
    for policy in ("selective", "full"):
        every = replace(too_large, recompute=policy)
        if pricer.request.permits(every) and pricer.fits(every):
            found = fewest_recomputed(pricer, every) or pricer.price(every)
            return found if isinstance(found, Priced) else None
    return None


def fewest_recomputed(pricer: Pricer, candidate: Candidate) -> Priced | None:
    """With as few blocks recomputed as were seen to fit; None where that is all of them, or none are recomputed."""
    policy, fewest, most = candidate.recompute, 0, pricer.request.model.num_layers
    if policy not in ("selective", "full") or not pricer.request.permits(replace(candidate, recompute=f"{policy}:1")):
        return None
    best = candidate
    for _ in range(HALVINGS):
        count = (fewest + most) // 2
        if count in (fewest, most):
            break
        fewer = replace(candidate, recompute=f"{policy}:{count}")
        if pricer.fits(fewer):
            best, most = fewer, count
        else:
            fewest = count
    priced = pricer.price(best) if best != candidate else None
    return priced if isinstance(priced, Priced) else None
