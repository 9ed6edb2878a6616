"""Keep, recompute or offload: what each block does with its activations, chosen for all of them together under the memory limit.

A pipeline rank that has too much chooses for its blocks what costs the fewest seconds for the bytes that it lacks. Seconds are
those of the forward that runs again, or of copies that computation does not hide; bytes are those by which the programs' peaks
differ. The programs then say whether it fits; what they lack is asked for again. Only fourfold's own software offloads.
"""

from collections.abc import Sequence
from dataclasses import replace

from fourfold.cost.prices import Prices
from fourfold.model.spec import Segment
from fourfold.plan.candidate import Candidate, policy_and_offload
from fourfold.plan.cheapest import Option, cheapest
from fourfold.plan.pricing import Priced, Pricer, candidate_spec
from fourfold.program.footprints import Footprints
from fourfold.program.spec import StepSpec
from fourfold.program.stage_map import StageMap, stage_map
from fourfold.simulate.durations import Durations
from fourfold.simulate.run_prices import OWN_SOFTWARE
from fourfold.simulate.step import Simulation

WAYS = ("none", "selective", "full", "offload", "selective+offload")
"""Ways of a block with its activations, the later the earlier in a rank blocks take them."""
PROBES = 3
"""Choices whose programs are asked whether they fit."""
MARGIN = 1.02
"""Times the bytes that were lacking are asked for again."""


def chosen_together(pricer: Pricer, candidate: Candidate) -> Priced | None:
    """The layout with the cheapest choice for each of its blocks that makes it fit; None where none does, where it needs no choice,
    and where a person or the trainer's limits choose."""
    request = pricer.request
    if request.software.name != OWN_SOFTWARE or request.constraints.states("recompute") or request.model.block:
        return None
    if any(limit.by for limit in request.constraints.limits):
        return None
    blocks, base = request.model.num_layers, replace(candidate, recompute="none", activations=())
    allowed = [way for way in WAYS if request.offload or "offload" not in way]
    held = {way: pricer.held(base if way == "none" else replace(base, activations=(way,) * blocks)) for way in allowed}
    none = held["none"]
    if none is None or any(each is None for each in held.values()) or max(none) <= request.memory_bytes:
        return None
    spec = candidate_spec(request, base)
    stages = stage_map(spec)
    costs = WaysToSpare(spec, request.prices(spec.layout), Footprints(spec.model, spec.shape))
    lacking = [max(0.0, each - request.memory_bytes) for each in none]
    for _ in range(PROBES):
        ways = _solved(stages, costs, {way: each or () for way, each in held.items()}, lacking)
        if ways is None:
            return None
        found = replace(base, activations=ways)
        now = pricer.held(found)
        if now is None:
            return None
        over = [each - request.memory_bytes for each in now]
        if max(over) <= 0:
            priced = pricer.price(found)
            return priced if isinstance(priced, Priced) else None
        lacking = [before + max(0.0, MARGIN * more) for before, more in zip(lacking, over, strict=True)]
    return None


def _solved(
    stages: StageMap, costs: "WaysToSpare", held: dict[str, Sequence[int]], lacking: Sequence[float]
) -> tuple[str, ...] | None:
    """One way for every block of the model, in order."""
    found: dict[str, str] = {}
    for rank, needed in enumerate(lacking):
        own = [each for stage in stages.held(rank) for each in stages.stages[stage] if _chooses(each)]
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
        found.update((each.name, [*held][place]) for each, place in zip(own, places, strict=True))
    return tuple(found[name] for name, each in stages.segments.items() if _chooses(each))


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
