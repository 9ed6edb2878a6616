"""Limits on the layouts of a search: the keys that a person states, and what a trainer can run.

Enumeration asks for the choices of each key in turn, so that layouts outside the limits are never bounded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from fourfold.config import UserError, did_you_mean
from fourfold.config.layout_section import LAYOUT_KEYS
from fourfold.layout.mesh import ORDERS
from fourfold.layout.resolve import CP_METHODS
from fourfold.plan.candidate import BlockShape
from fourfold.program.schedule import BUILT_IN

Value = int | str | bool
T = TypeVar("T", bound=Value)
_AROUND = ("pp", "schedule", "virtual_stages", "dp_replicate", "dp_shard", "zero", "outermost")
KEYS = (*(field.name for field in fields(BlockShape)), *_AROUND)
"""Keys of a layout that the search enumerates: a rank's share of a microbatch, and what is around it."""
FLAGS = ("sequence_parallel", "overlap_experts", "offload_optimizer")
"""Keys that are the same in all layouts where a person states them."""
_FOUND = ("segments_per_stage", "offload")
KEPT = tuple(key for key in LAYOUT_KEYS if key not in (*KEYS, *FLAGS, *_FOUND))
"""Keys that the search leaves as the run states them."""
SHARED = (*KEPT, "sequence_parallel", *_FOUND)
"""Keys that are of a request, or found when a layout is complete: no `Candidate` states them."""
POLICIES = ("none", "selective", "full")
MOST = 1_000_000


@dataclass(frozen=True)
class Limit:
    """`key` has one of `values`. `beside`: only in layouts whose degree of that name is above 1. `by`: the trainer whose limit it
    is; empty: a person stated it.

    Keys are those of `KEYS`, `dp` (all data-parallel ranks), `sequence_parallel`, and `left_over`: microbatches modulo pipeline
    ranks. `full:N` among the values of `recompute` stands for any number of blocks."""

    key: str
    values: tuple[Value, ...]
    beside: str = ""
    by: str = ""

    def matters(self, layout: Mapping[str, object]) -> bool:
        """Whether a layout with these fields falls under it."""
        degree = layout.get(self.beside, 1)
        return not self.beside or (isinstance(degree, int) and degree > 1)

    def takes(self, value: object) -> bool:
        """Whether the limit allows a value; `full:3` as `full:N`."""
        return value in self.values or (
            isinstance(value, str) and re.sub(r":\d+$", ":N", value) in self.values and not value.startswith("ring")
        )

    @property
    def words(self) -> str:
        """`layout.pp=2,4`; the name of the trainer."""
        return (
            self.by or f"{'' if self.key == 'dp' else 'layout.'}{self.key}={','.join(map(format_value, self.values))}"
        )


@dataclass(frozen=True)
class Constraints:
    """Limits that all hold."""

    limits: tuple[Limit, ...] = ()

    def choices(self, key: str, usual: Iterable[T], layout: Mapping[str, object]) -> list[T]:
        """The values of a key beside the fields that are chosen already: what a person stated, else the usual ones, without those
        that the trainer cannot run. In the usual order, whatever the order in which they are stated."""
        mine = [limit for limit in self.limits if limit.key == key and limit.matters(layout)]
        stated = next((limit.values for limit in mine if not limit.by), None)
        values = list(usual)
        if stated is not None:
            places = {value: place for place, value in enumerate(values)}
            values = sorted({*stated}, key=lambda each: (places.get(each, len(places)), *_order(each)))  # type: ignore[arg-type]
        return [value for value in values if all(limit.takes(value) for limit in mine)]

    def permits(self, layout: Mapping[str, object]) -> bool:
        """Whether a layout with these fields keeps to all limits."""
        return all(
            limit.takes(layout[limit.key]) for limit in self.limits if limit.key in layout and limit.matters(layout)
        )

    def states(self, *keys: str) -> bool:
        """Whether a person stated one of the keys."""
        return any(limit.key in keys for limit in self.stated)

    @property
    def stated(self) -> tuple[Limit, ...]:
        """Limits that a person stated, the trainer's aside."""
        return tuple(limit for limit in self.limits if not limit.by)

    @property
    def sources(self) -> dict[str, tuple[Limit, ...]]:
        """The limits by what a person would take back: a key, or the trainer."""
        found: dict[str, tuple[Limit, ...]] = {}
        for limit in self.limits:
            found[limit.words] = (*found.get(limit.words, ()), limit)
        return found

    def stating(self, values: Mapping[str, Sequence[Value]]) -> "Constraints":
        """With these values of keys, in place of what was stated of them."""
        kept = tuple(limit for limit in self.limits if limit.by or limit.key not in values)
        return Constraints((*kept, *(Limit(key, tuple(each)) for key, each in values.items())))

    def without(self, limits: Iterable[Limit]) -> "Constraints":
        """A copy without some limits."""
        gone = set(limits)
        return Constraints(tuple(limit for limit in self.limits if limit not in gone))


NO_CONSTRAINTS = Constraints()


def _order(value: Value) -> tuple[int, str]:
    """Numbers by size, then words."""
    return (value, "") if isinstance(value, int) else (MOST, value)


def format_value(value: Value) -> str:
    """A value as a command line states it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_value(key: str, text: str, where: str) -> int | str:
    """A value of a key of `KEYS`, or of `dp`. `where`: what the message begins with, `layout.` or `--explain `. Raises
    `UserError`."""
    head = f"{where}{key}={text[:80]}"
    allowed = {
        "schedule": tuple(schedule.name for schedule in BUILT_IN),
        "cp_method": CP_METHODS,
        "recompute": POLICIES,
        "outermost": tuple(ORDERS),
    }.get(key)
    if allowed is None:
        least, most = (0, 3) if key == "zero" else (1, MOST)
        if text.isascii() and text.isdigit() and least <= int(text) <= most:
            return int(text)
        raise UserError(f"{head}: allowed: a whole number from {least} to {most}; a value that works: {where}{key}=2")
    if text in allowed[:3] or text in allowed or (key == "cp_method" and re.fullmatch(r"ring\+ulysses:[1-9]\d*", text)):
        return text
    if key == "recompute" and text.partition(":")[0] in POLICIES:
        raise UserError(
            f"{head}, recompute = {text!r} of a layout that is searched for: allowed: {', '.join(POLICIES)}, of all blocks; how "
            f"many need it is found by itself; a value that works: {where}{key}={text.partition(':')[0]}"
        )
    hint = did_you_mean(text, allowed, lambda near: f"{where}{key}={near}")
    raise UserError(f"{head}: {hint}allowed: {', '.join(allowed)}; a value that works: {where}{key}={allowed[0]}")


def parse_fixed(text: str) -> dict[str, int | str]:
    """`tp=16,pp=4` -> fields of a layout. Raises `UserError`."""
    result: dict[str, int | str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in (*KEYS, "dp"):
            raise UserError(
                f"--explain {part.strip()!r}: not KEY=VALUE with a key of a layout; {did_you_mean(key, KEYS)}allowed keys: "
                f"{', '.join(KEYS)}, dp; "
                f"a value that works: --explain tp=8,pp=4"
            )
        result[key] = parse_value(key, value, "--explain ")
    return result
