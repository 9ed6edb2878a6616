"""Goals of the board's programs. The engine answers each, and computes what is to be reached from the compiler's own orders."""

import tomllib
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from fourfold.explore.board.moves.judged import Judged, is_endless, judged, unmoved
from fourfold.explore.board.moves.link import Order, link_of
from fourfold.explore.board.moves.search import least_memory
from fourfold.explore.board.moves.setting import FOLDER, Compiled, Name, compiled
from fourfold.results.record import record

Reach = Literal["gathers", "memory", "step", "deadlock", "order", "mended"]
PREFETCHES = (0, 1, 2, 3)
"""Values of `layout.prefetch` whose programs are the compiler's best to compare with."""
_ALLOWED = 1.02
_ROUNDING = 1e-6


class Broken(BaseModel):
    """An instruction that stands in the wrong place, by its short form, and the one that it stands behind."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    list: int
    move: str
    behind: str


class ProgramGoal(BaseModel):
    """A goal, as `goals.toml` has it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Name
    title: str
    text: str
    setting: str
    reach: Reach
    broken: Broken | None = None

    def opening(self, of: Compiled) -> tuple[Order, ...]:
        """The orders with which it begins."""
        orders = list(unmoved(of).orders)
        if self.broken is not None:
            orders[self.broken.list] = _broken(of, self.broken)
        return tuple(orders)


@record
class MovesAnswer:
    """An answer to choose: as a request has it, and in words."""

    value: str
    words: str


@record
class MovesGoal:
    """A goal, and how far the programs are. `opening`: the moves with which it begins; None for goals of another setting. Figures
    in seconds or bytes (`unit`): `at_most` reaches it, `compiler` is that of the compiler's order, `yours` that of the board; None
    where nothing is to be measured, or nothing is proved. `limit_bytes`: the most that a rank may hold; `question`: asked of a
    deadlock, with `answers`; `answered`: whether the answer was right."""

    id: str
    title: str
    text: str
    setting: str
    opening: str | None
    unit: Literal["seconds", "bytes", "none"]
    at_most: float | None
    compiler: float | None
    yours: float | None
    limit_bytes: int | None
    question: str
    answers: list[MovesAnswer]
    answered: bool | None
    reached: bool


@lru_cache(maxsize=1)
def read_goals() -> tuple[ProgramGoal, ...]:
    """All goals, in order."""
    rows = tomllib.loads((FOLDER / "goals.toml").read_text(encoding="utf-8"))["goal"]
    return tuple(map(ProgramGoal.model_validate, rows))


def goal_rows(now: Judged, before: Judged, begun: str | None, why: str | None) -> list[dict[str, Any]]:
    """`MovesGoal` of every goal. `begun`: the one that a person is at; a deadlock counts for it alone, and so does what is mended,
    since the compiler's own order would be both."""
    return [_row(goal, now, before, goal.id == begun, why) for goal in read_goals()]


def _row(goal: ProgramGoal, now: Judged, before: Judged, begun: bool, why: str | None) -> dict[str, Any]:
    of = now.compiled
    row: dict[str, Any] = {
        **goal.model_dump(include={"id", "title", "text", "setting"}),
        "opening": None,
        "unit": "none",
        "at_most": None,
        "compiler": None,
        "yours": None,
        "limit_bytes": None,
        "question": "",
        "answers": [],
        "answered": None,
        "reached": False,
    }
    if goal.setting != of.setting.id:
        return row
    row["opening"] = link_of(goal.opening(of), of.lists)
    if goal.reach == "order":
        return row | {"reached": any("collective" in fault.message for fault in now.verification.faults)}
    if goal.reach == "deadlock":
        return row | _deadlock(now, why if begun else None)
    counts = now.proved and now.simulation is not None
    row |= {
        "unit": "bytes" if goal.reach == "memory" else "seconds",
        "compiler": _measured(goal, before),
        "yours": _measured(goal, now) if counts else None,
    }
    row["at_most"] = at_most = _target(goal, before)
    limit = before.peak_bytes if goal.reach == "step" else None
    within = limit is None or (counts and now.peak_bytes <= limit)
    below = counts and row["yours"] <= at_most * (1 + _ROUNDING)
    started = goal.broken is None or (begun and now.orders != goal.opening(of))
    return row | {"limit_bytes": limit, "reached": bool(counts and within and below and started)}


def _measured(goal: ProgramGoal, of: Judged) -> float:
    """The figure of a goal, in seconds or bytes."""
    if goal.reach == "gathers":
        return of.exposed_gathers
    if goal.reach == "memory":
        return float(of.peak_bytes)
    assert of.simulation is not None
    return of.simulation.seconds


def _target(goal: ProgramGoal, before: Judged) -> float:
    """The most that reaches the goal: from the compiler's own orders, and for memory from a search."""
    setting, cluster = before.compiled.setting.id, before.compiled.cluster
    if goal.reach == "gathers":
        return _ALLOWED * least_exposed_gathers(setting, cluster)
    if goal.reach == "memory":
        return float(least_peak(setting, cluster))
    assert before.simulation is not None
    return before.simulation.seconds * (1 - (10 * _ROUNDING if goal.reach == "step" else 0))


@lru_cache(maxsize=32)
def least_exposed_gathers(setting: str, cluster: str) -> float:
    """Seconds of waiting for gathers in the best of the compiler's orders."""
    return min(unmoved(compiled(setting, cluster, prefetch)).exposed_gathers for prefetch in PREFETCHES)


@lru_cache(maxsize=32)
def least_peak(setting: str, cluster: str) -> int:
    """Bytes of the order that a search finds from the compiler's."""
    of = compiled(setting, cluster)
    return judged(of, least_memory(of)).peak_bytes


def _broken(of: Compiled, broken: Broken) -> Order:
    """The compiler's order with one instruction elsewhere: the first of its name, behind the first of the other's."""
    names = [step.short for step in of.lists[broken.list].instructions]
    moved, behind = names.index(broken.move), names.index(broken.behind)
    order = [number for number in range(len(names)) if number != moved]
    order.insert(order.index(behind) + 1, moved)
    return tuple(order)


def _deadlock(now: Judged, why: str | None) -> dict[str, Any]:
    """The question of a deadlock, and whether the answer to it is right."""
    stuck = [(fault, now.awaited(fault)) for fault in now.verification.faults if is_endless(fault)]
    asked = next(((fault, awaited) for fault, awaited in stuck if awaited), None)
    if asked is None:
        return {}
    fault, awaited = asked
    spot = now.spot_of(fault)
    assert spot is not None
    assert fault.instruction is not None
    right = {f"{number}-{n}" for number, n in awaited}
    answered = None if why is None else why in right
    return {
        "question": f"rank {fault.rank} stands before `{fault.instruction.short}`. What does it wait for another rank to reach?",
        "answers": _answers(now, spot[0]),
        "answered": answered,
        "reached": answered is True,
    }


def _answers(now: Judged, asked: int) -> list[dict[str, str]]:
    """Instructions of the other lists that start something, in the order of the board."""
    found = []
    for number, (own, order) in enumerate(zip(now.compiled.lists, now.orders, strict=True)):
        if number == asked:
            continue
        starts = [n for n in order if own.instructions[n].op.is_start]
        found += [
            {"value": f"{number}-{n}", "words": f"{own.instructions[n].short} of rank {own.ranks[0]}"} for n in starts
        ]
    return found
