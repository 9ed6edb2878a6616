"""Moves as an address has them: where instructions stand that do not stand where the compiler put them.

`21-18.19x:4-2` says: in the first list instruction 21 of the compiler's order stands at place 18 and number 19 is taken out, in the
second 4 stands at 2. All others keep their order and fill the places that are left.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.explore.board.moves.setting import RankList, is_movable
from fourfold.explore.board.request import BETWEEN

Order = tuple[int, ...]
"""A list, by the numbers of its instructions; numbers that are missing are taken out."""
_MOVE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4})|x)")
_WORKS = "what works: 21-18.19x, instruction 21 stands at place 18 and 19 is taken out, a ':' between lists"


def read_link(text: str, lists: Sequence[RankList]) -> tuple[Order, ...]:
    """The orders of all lists. Raises `UserError` where the text is none of these lists."""
    if not text:
        return tuple(tuple(range(len(each.instructions))) for each in lists)
    parts = text.split(BETWEEN)
    if len(parts) != len(lists):
        raise UserError(f"moves: {len(parts)} lists, but the setting has {len(lists)}; {_WORKS}")
    return tuple(_order(part, number, each) for number, (part, each) in enumerate(zip(parts, lists, strict=True)))


def _order(text: str, number: int, of: RankList) -> Order:
    moved: dict[int, int | None] = {}
    for word in text.split(".") if text else ():
        found = _MOVE.fullmatch(word)
        if found is None:
            raise UserError(f"moves: list {number}: {shortened(word)} is no move; {_WORKS}")
        which, place = int(found[1]), None if found[2] is None else int(found[2])
        if which >= len(of.instructions):
            raise UserError(f"moves: list {number}: {word}: allowed: instructions 0 to {len(of.instructions) - 1}")
        if which in moved:
            raise UserError(
                f"moves: list {number}: {word}: instruction {which} is moved twice; allowed: one move of each"
            )
        step = of.instructions[which]
        if not is_movable(step):
            raise UserError(
                f"moves: list {number}: {word}: `{step.short}` computes, and stays; allowed: what starts, joins or frees"
            )
        moved[which] = place
    places = {place: which for which, place in moved.items() if place is not None}
    length = len(of.instructions) - sum(place is None for place in moved.values())
    if len(places) < sum(place is not None for place in moved.values()) or max(places, default=-1) >= length:
        raise UserError(f"moves: list {number}: allowed: places 0 to {length - 1}, each for one instruction; {_WORKS}")
    others = (which for which in range(len(of.instructions)) if which not in moved)
    return tuple(places[place] if place in places else next(others) for place in range(length))


def link_of(orders: Sequence[Order], lists: Sequence[RankList]) -> str:
    """The shortest text of these orders; empty where nothing is moved."""
    parts = [_part(order, each) for order, each in zip(orders, lists, strict=True)]
    return BETWEEN.join(parts) if any(parts) else ""


def _part(order: Order, of: RankList) -> str:
    kept = _longest_rising(order, of)
    moves = [f"{which}-{place}" for place, which in enumerate(order) if which not in kept]
    out = sorted(set(range(len(of.instructions))) - set(order))
    return ".".join([*moves, *(f"{which}x" for which in out)])


def _longest_rising(order: Order, of: RankList) -> set[int]:
    """The most instructions whose order is the compiler's, all that compute among them: the others are moved."""
    fixed = [which for which in order if not is_movable(of.instructions[which])]
    kept: set[int] = set(fixed)
    bounds = [-1, *fixed, len(of.instructions)]
    places = [-1, *(order.index(which) for which in fixed), len(order)]
    for low, high, begin, end in zip(bounds, bounds[1:], places, places[1:], strict=False):
        kept.update(_rising([which for which in order[begin + 1 : end] if low < which < high]))
    return kept


def _rising(numbers: Sequence[int]) -> list[int]:
    """A longest rising subsequence (patience sorting)."""
    tails: list[int] = []
    before: dict[int, int | None] = {}
    for number in numbers:
        at = bisect_left(tails, number)
        before[number] = tails[at - 1] if at else None
        tails[at : at + 1] = [number]
    found, last = list[int](), tails[-1] if tails else None
    while last is not None:
        found.append(last)
        last = before[last]
    return found[::-1]
