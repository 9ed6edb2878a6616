"""Keep, recompute or offload: what each block does with its activations, and where optimizer states lie, chosen together under the
memory limit.

A pipeline rank that has too much chooses for its blocks what costs the fewest seconds for the bytes that it lacks. Seconds are
those of the forward that runs again, or of copies that computation does not hide; bytes are those by which the programs' peaks
differ. The programs then say whether it fits; what they lack is asked for again. The states of all ranks stay or leave, whichever
costs less with its best choice for the blocks. Only fourfold's own software offloads.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fourfold.cost.prices import Prices
from fourfold.model.spec import Segment
from fourfold.plan.candidate import Candidate, policy_and_offload
from fourfold.plan.cheapest import Option, cheapest
from fourfold.plan.pricing import Priced, Pricer, candidate_spec
from fourfold.plan.request import Request
from fourfold.plan.states_away import freed_and_seconds
from fourfold.program.footprints import Footprints
from fourfold.program.spec import StepSpec
from fourfold.program.stage_map import stage_map
from fourfold.program.view import rank_views
from fourfold.simulate.durations import Durations
from fourfold.simulate.run_prices import OWN_SOFTWARE
from fourfold.simulate.step import Simulation

WAYS = ("none", "selective", "full", "offload", "selective+offload")
"""Ways of a block with its activations, the later the earlier in a rank blocks take them."""
PROBES = 3
"""Choices whose programs are asked whether they fit."""
FREE, NEAR = 0.001, 0.01
"""Shares of a step: what a choice costs that needs no other beside it, and how far apart two may be said to be of which either may
be the better."""
MARGIN = 1.02
"""Times the bytes that were lacking are asked for again."""


class _Start(NamedTuple):
    """All blocks keep their activations: `lacking` bytes of every pipeline rank; `seconds` by which it is slower."""

    layout: Candidate
    lacking: list[float]
    seconds: float


def chosen_together(pricer: Pricer, candidate: Candidate) -> Priced | None:
    """The layout with the cheapest choice for each of its blocks, and for its optimizer states where that is open, that makes it
    fit; None where none does, where it needs no choice, and where a person or the trainer's limits choose."""
    request = pricer.request
    if request.software.name != OWN_SOFTWARE or request.constraints.states("recompute") or request.model.block:
        return None
    if any(limit.by for limit in request.constraints.limits):
        return None
    stays = replace(candidate, recompute="none", activations=(), offload_optimizer=bool(request.offload_optimizer))
    blocks = request.model.num_layers
    ways = [way for way in WAYS if "offload" not in way or (request.offload and request.can_offload)]
    held = {way: pricer.held(stays if way == "none" else replace(stays, activations=(way,) * blocks)) for way in ways}
    none = held["none"]
    if none is None or any(each is None for each in held.values()) or max(none) <= request.memory_bytes:
        return None
    spec = candidate_spec(request, stays)
    knapsack = _Knapsack(request, spec, {way: each or () for way, each in held.items()})
    starts = [_Start(stays, [max(0.0, each - request.memory_bytes) for each in none], 0.0)]
    if request.states_may_leave:
        starts.append(_away(request, spec, starts[0]))
    for only_on_device in (False, True) if request.host_bytes < float("inf") else (False,):
        chosen = [(start, knapsack.solved(start.lacking, only_on_device)) for start in starts]
        possible = [(start, first) for start, first in chosen if first is not None]
        best, least = None, 0.0
        for start, first in sorted(possible, key=lambda each: each[0].seconds + each[1].seconds):
            seconds = start.seconds + first.seconds
            if best is not None and not _may_be_better(seconds, least, best):
                break
            found = _fitting(pricer, knapsack, start, first, only_on_device)
            if found is not None:
                best, least = min(filter(None, (best, found)), key=lambda each: each.score), seconds
        if best is not None:
            return best
    return None


def _may_be_better(seconds: float, least: float, best: Priced) -> bool:
    """Whether a choice that is said to cost `seconds` may be better than that of the `least`, which was simulated."""
    return least > FREE * best.seconds and seconds - least < NEAR * best.seconds


def _away(request: Request, spec: StepSpec, stays: _Start) -> _Start:
    """The same with optimizer states in the host's memory."""
    prices, more = request.prices(spec.layout), 1 + request.software.fragmentation
    freed, seconds = zip(*(freed_and_seconds(view, prices) for view in rank_views(spec)), strict=True)
    lacking = [max(0.0, each - more * size) for each, size in zip(stays.lacking, freed, strict=True)]
    return _Start(replace(stays.layout, offload_optimizer=True), lacking, max(seconds))


def _fitting(
    pricer: Pricer, knapsack: "_Knapsack", start: _Start, first: "_Chosen", only_on_device: bool
) -> Priced | None:
    """With the cheapest ways whose programs fit: what those of the `first` lack is asked for again."""
    lacking, most, chosen = start.lacking, pricer.request.memory_bytes, first
    for _ in range(PROBES):
        found = replace(start.layout, activations=chosen.ways if set(chosen.ways) != {"none"} else ())
        now = pricer.held(found)
        if now is None:
            return None
        over = [each - most for each in now]
        if max(over) <= 0:
            priced = pricer.price(found)
            return priced if isinstance(priced, Priced) else None
        lacking = [before + max(0.0, MARGIN * more) for before, more in zip(lacking, over, strict=True)]
        following = knapsack.solved(lacking, only_on_device)
        if following is None:
            return None
        chosen = following
    return None


class _Chosen(NamedTuple):
    """One way for every block of the model, in order, and the seconds that they cost the pipeline rank that pays most."""

    ways: tuple[str, ...]
    seconds: float


class _Knapsack:
    """The choice of ways. `held`: by way, what every pipeline rank's devices hold if all blocks take it."""

    def __init__(self, request: Request, spec: StepSpec, held: dict[str, Sequence[int]]) -> None:
        self._stages, self._held = stage_map(spec), held
        self._costs = WaysToSpare(spec, request.prices(spec.layout), Footprints(spec.model, spec.shape))

    def solved(self, lacking: Sequence[float], only_on_device: bool) -> _Chosen | None:
        """The cheapest ways that spare every pipeline rank the bytes that it lacks; None where none do. `only_on_device`: without
        those that offload."""
        found: dict[str, str] = {}
        costs, slowest = self._costs, 0.0
        held = {way: each for way, each in self._held.items() if not (only_on_device and "offload" in way)}
        for rank, needed in enumerate(lacking):
            own = [each for stage in self._stages.held(rank) for each in self._stages.stages[stage] if _chooses(each)]
            total = sum(costs.saved(each) for each in own)
            options = []
            for each in own:
                share = costs.saved(each) / total
                spared = [share * (held["none"][rank] - held[way][rank]) for way in held]
                options.append(
                    tuple(Option(costs.seconds(each, way), size) for way, size in zip(held, spared, strict=True))
                )
            places = cheapest(options, needed)
            if places is None:
                return None
            slowest = max(slowest, sum(each[place].seconds for each, place in zip(options, places, strict=True)))
            found.update((each.name, [*held][place]) for each, place in zip(own, places, strict=True))
        chosen = tuple(found[name] for name, each in self._stages.segments.items() if _chooses(each))
        return _Chosen(chosen, slowest)


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
            more += max(0.0, copy - self._ahead * forward) + max(0.0, copy - self._ahead * backward)
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
