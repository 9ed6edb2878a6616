"""Advice on a layout: single changes of it that were simulated, and that help.

A change is a neighbour (`plan/moves/neighbours.py`). If the layout fits, those are looked for that are faster, and fit; if not,
those that make it fit, or hold the least. The ones whose bounds are best are simulated first, until the best few are
known.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fourfold.config import UserError
from fourfold.config.layout_section import LAYOUT_KEYS
from fourfold.layout import Layout
from fourfold.plan.candidate import Candidate, way_of
from fourfold.plan.constraints import SHARED, format_value
from fourfold.plan.moves.neighbours import neighbours
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request
from fourfold.program.schedule import BUILT_IN
from fourfold.simulate.summary import StepSummary

HELPS = 0.01
"""Share of the step, or of the memory, from which a change is worth advice."""
MOST = 3
"""Changes that are advised."""
BUDGET = 4.0
"""Units of work (`plan/budget.py`) that looking for them takes at most."""
SURE = 0.5
"""How much of what the simulation of the layout adds to its bound is taken to be added to its neighbours' at least."""

Simulated = Callable[[Candidate], tuple[float, int, bool] | None]
"""Seconds of a step, bytes of the fullest device, whether it fits; None where the layout cannot be."""


@dataclass(frozen=True)
class LayoutChange:
    """A change that was simulated: keys of `[layout]` with their new values; the step and the fullest device with it."""

    keys: tuple[tuple[str, Any], ...]
    seconds: float
    memory_bytes: int
    fits: bool

    @property
    def overrides(self) -> tuple[str, ...]:
        """`layout.tp=4`, for a command line."""
        return overrides_of(self.keys)


@dataclass(frozen=True)
class Advice:
    """`changes`: the best first, all simulated; empty where no single change helps."""

    changes: tuple[LayoutChange, ...]


def candidate_of(layout: Layout, num_layers: int) -> Candidate | None:
    """The layout in the planner's words; None where it has none for its schedule. `num_layers`: blocks, those of MTP aside."""
    if layout.schedule not in {schedule.name for schedule in BUILT_IN}:
        return None
    policies, away = layout.recompute[1 : num_layers + 1], layout.offload[1 : num_layers + 1]
    first, uneven = policies[0], len({*policies}) > 1
    recompute, activations = str(first), tuple[str, ...]()
    number = sum(policy == first for policy in policies)
    if any(away):
        activations = tuple(way_of(policy, each) for policy, each in zip(policies, away, strict=True))
        recompute = "none"
    elif uneven and first != "none" and {*policies[number:]} == {"none"}:
        recompute = f"{first}:{number}"
    elif uneven:
        recompute, activations = "none", tuple(policies)
    same = {key: getattr(layout, key) for key in LAYOUT_KEYS if key not in (*SHARED, "recompute")}
    return Candidate(**same, recompute=recompute, activations=activations)


def overrides_of(keys: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Keys of `[layout]` as overrides of a command line."""
    return tuple(f"layout.{key}={format_value(value)}" for key, value in keys)


def changed_keys(request: Request, before: Candidate, after: Candidate) -> tuple[tuple[str, Any], ...]:
    """Keys of `[layout]` that a layout has other values of than one before it."""
    old, new = vars(request.section(before)), vars(request.section(after))
    return tuple((key, new[key]) for key in old if key != "sequence_parallel" and new[key] != old[key])


def advise(pricer: Pricer, layout: Candidate, summary: StepSummary, simulated: Simulated | None = None) -> Advice:
    """The best changes of a layout whose step is known. `simulated`: another way to simulate a layout than `pricer`'s; work of
    `pricer.budget` is spent in any case. Raises nothing: neighbours that cannot be are passed over."""
    seconds, held = summary.seconds, max(summary.step.device_bytes)
    if layout.zero and layout.dp_shard * layout.cp == 1:
        layout = replace(layout, zero=0)  # nothing is sharded
    simulate = simulated or _by(pricer)
    ahead = _faster(pricer, layout, seconds) if summary.fits else _smaller(pricer, layout, held)
    found: list[LayoutChange] = []
    for least, candidate in ahead:
        known = sorted(map(_rank, found))[:MOST]
        if pricer.budget.is_spent or (len(known) == MOST and summary.fits and least >= known[-1][1]):
            break
        priced = simulate(candidate)
        if priced is None:
            continue
        change = LayoutChange(changed_keys(pricer.request, layout, candidate), *priced)
        likely = change.fits and change.memory_bytes <= pricer.request.memory_bytes
        faster = change.seconds <= (1 - HELPS) * seconds
        smaller = change.memory_bytes <= (1 - HELPS) * held and held > pricer.request.memory_bytes
        if (likely and faster) if summary.fits else (change.fits or smaller):
            found.append(change)
        if not summary.fits and sum(each.fits for each in found) == MOST:
            break
    return Advice(tuple(sorted(found, key=_rank)[:MOST]))


def _rank(change: LayoutChange) -> tuple[bool, float]:
    """Changes that fit come before others, the faster first; the others, the smaller first."""
    return not change.fits, change.seconds if change.fits else change.memory_bytes


def _faster(pricer: Pricer, layout: Candidate, seconds: float) -> Iterator[tuple[float, Candidate]]:
    """Neighbours that may be faster by enough, with about the least seconds that they take, the fastest first."""
    own = next(iter(_bounds(pricer, [layout])), None)
    added = 1 + SURE * (seconds / own[0] - 1) if own is not None else 1.0
    most, worth = pricer.request.memory_bytes, pricer.outlook.weight(layout)
    outlined = [
        (added * bound, memory, candidate)
        for bound, memory, candidate in _bounds(pricer, neighbours(pricer.request, layout))
        if memory <= most
        and added * bound * max(1.0, pricer.outlook.weight(candidate) / worth) <= (1 - HELPS) * seconds
    ]
    for expected, _, candidate in sorted(outlined, key=lambda each: each[:2]):
        if not pricer.end_ranks_exceed(candidate, most):
            yield expected, candidate


def _smaller(pricer: Pricer, layout: Candidate, held: int) -> Iterator[tuple[float, Candidate]]:
    """Neighbours that may hold less by enough: those that may fit, the fastest first; then the others, the smallest first."""
    most = pricer.request.memory_bytes
    least = (1 - HELPS) * held if held > most else most  # else the host is what lacks memory
    outlined = [each for each in _bounds(pricer, neighbours(pricer.request, layout)) if each[1] <= least]
    outlined.sort(key=lambda each: (each[1] > most, each[0] if each[1] <= most else each[1]))
    yield from ((bound, candidate) for bound, _, candidate in outlined)


def _bounds(pricer: Pricer, layouts: Iterable[Candidate]) -> Iterator[tuple[float, float, Candidate]]:
    """Bounds of seconds and bytes of the layouts that can be, as they are: without other ways for their blocks' activations."""
    for each in layouts:
        with suppress(UserError):
            seconds, memory, _ = pricer.bound(each, mixes=False)
            yield seconds, memory, each


def _by(pricer: Pricer) -> Simulated:
    """Simulates as the plan does."""

    def simulated(candidate: Candidate) -> tuple[float, int, bool] | None:
        priced = pricer.price(candidate)
        if isinstance(priced, str):
            return None
        return priced.seconds, priced.memory_bytes, priced.memory_bytes <= pricer.request.memory_bytes

    return simulated
