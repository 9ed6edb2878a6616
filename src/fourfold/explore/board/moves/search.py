"""A search over moves for the order that holds least memory, with the verifier as the judge of each step."""

from fourfold.explore.board.moves.judged import judged, unmoved
from fourfold.explore.board.moves.link import Order
from fourfold.explore.board.moves.setting import Compiled, RankList, is_movable
from fourfold.program.liveness import memory_curve

_ROUNDS = 6


def least_memory(of: Compiled) -> tuple[Order, ...]:
    """From the compiler's order, moves of single instructions past all others that they may pass, up or down, where the list then
    holds less and the verifier still proves all programs; until no move helps. Nothing says that no order holds less."""
    orders = list(unmoved(of).orders)
    for _ in range(_ROUNDS):
        before = list(orders)
        for number, own in enumerate(of.lists):
            for moved in (n for n, step in enumerate(own.instructions) if is_movable(step)):
                held = _held(own, orders[number])
                for tried in _farthest(own, orders[number], moved):
                    new = [*orders[:number], tried, *orders[number + 1 :]]
                    if (less := _held(own, tried)) < held and judged(of, new).proved:
                        orders, held = new, less
        if orders == before:
            break
    return tuple(orders)


def _farthest(own: RankList, order: Order, moved: int) -> list[Order]:
    """The order with an instruction as early as it may stand, and as late: next to those that use the same buffers."""
    here, rest = order.index(moved), [n for n in order if n != moved]
    touched = [_touched(own, n) for n in rest]
    mine = _touched(own, moved)
    first, last = here, here
    while first > 0 and not _conflict(mine, touched[first - 1]):
        first -= 1
    while last < len(rest) and not _conflict(mine, touched[last]):
        last += 1
    return [(*rest[:place], moved, *rest[place:]) for place in (first, last) if place != here]


def _touched(own: RankList, number: int) -> tuple[set[str], set[str]]:
    """The buffers that an instruction reads, and those that it changes, with its name where it starts or joins. A WAIT changes what
    arrives by it."""
    step = own.instructions[number]
    reads, changes = {*step.reads}, {*step.writes, *step.frees}
    started = own.started(number)
    if started is not None and started.op.is_start:
        reads |= {*started.reads}
        changes |= {*started.writes, started.short}
    return reads, changes


def _conflict(one: tuple[set[str], set[str]], other: tuple[set[str], set[str]]) -> bool:
    """Whether two instructions may not pass each other: one changes what the other reads or changes."""
    return not (one[1].isdisjoint(other[0] | other[1]) and other[1].isdisjoint(one[0]))


def _held(own: RankList, order: Order) -> tuple[int, int]:
    """The peak of a list, and the sum of its curve, which tells whether a move helps later ones."""
    curve = memory_curve(own.program.with_instructions([own.instructions[n] for n in order]))
    return max(curve), sum(curve)
