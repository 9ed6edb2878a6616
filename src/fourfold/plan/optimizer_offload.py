"""Optimizer states in the host's memory: what they free and cost, and when layouts with them there are worth a search.

Their copies run around the update alone, behind the last computation, so that they never share the link with those of activations.
Where it is open what blocks do with their activations, where the states lie is chosen together with it (`plan/activations.py`).
Else layouts that fit with their states on the device are searched first, and all with them away where none of those fits, or where
bounds say that a faster one would.
"""

from dataclasses import fields, replace

from fourfold.cost.prices import Prices
from fourfold.plan.bound import may_mix
from fourfold.plan.found_layouts import Found, best_first
from fourfold.plan.pool import Counts
from fourfold.program.capabilities import buffer_bytes
from fourfold.program.sizes import state_buffers
from fourfold.program.view import RankView

WORTH = 0.98
"""Share of the best time that layouts with their states away are searched for."""


def freed_and_seconds(view: RankView, prices: Prices) -> tuple[int, float]:
    """Bytes of optimizer states that a pipeline rank's devices no longer hold while they compute, and the seconds by which its step
    gets longer.

    A unit is updated when its states are there and those of the unit before are gone; those of the next unit start then
    (`program/offload/`)."""
    spec, flats = view.spec, view.flats
    sizes = [sum(buffer_bytes(view, each) for each in state_buffers(view, unit)) for unit in flats]
    copies = [prices.host_copy(size) for size in sizes]
    updates = [prices.memory(spec.update_bytes(flat.shard_numel, flat.matrix_numel)) for flat in flats.values()]
    gone, there = 0.0, copies[0]
    for update, copy, following in zip(updates, copies, [*copies[1:], 0.0], strict=True):
        starts = max(gone, there)
        there, gone = starts + following, starts + update + copy
    return sum(sizes), gone - sum(updates)


def worth_a_search(found: Found) -> bool:
    """Whether nothing fits, or the best fits because it spares activations or states, and a layout whose states alone keep it from
    fitting looks faster. That is taken to be above its bound as the nearest to its own among the best."""
    if not found.request.states_may_leave or found.away_seconds == float("inf") or may_mix(found.request):
        return False
    if not found.best:
        return True
    best = found.best[0]
    above = min((each.seconds / each.bound_seconds for each in found.best if each.bound_seconds), default=1.0)
    layout = best.candidate
    spares = bool(layout.activations) or layout.offload_optimizer or layout.recompute != "none"
    return spares and found.away_seconds * above < WORTH * best.seconds


def joined(found: Found, away: Found, keep: int) -> Found:
    """The layouts of two searches in one order."""
    best = best_first([*found.best, *away.best], keep)
    surely_fits = best_first(filter(None, [found.surely_fits, away.surely_fits]), 1)
    sums = {each.name: getattr(found.counts, each.name) + getattr(away.counts, each.name) for each in fields(Counts)}
    smallest = min(filter(None, [found.smallest, away.smallest]), key=lambda each: each[1], default=None)
    return replace(
        found,
        best=tuple(best),
        counts=Counts(**sums),
        seconds=found.seconds + away.seconds,
        smallest=None if best else smallest,
        low_memory=found.low_memory or away.low_memory,
        surely_fits=surely_fits[0] if surely_fits else None,
        refusal=found.refusal or away.refusal,
    )
