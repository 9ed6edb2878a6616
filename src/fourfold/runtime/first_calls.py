"""The first call of every communicator that a rank's programs use, before the first step: later, both ends would connect there, and
block until the other comes, at the memory's peak and in an order that nobody has proved.

All ranks make the calls in one order: groups by their names, then pairs of a pipeline by their stages. A call waits for those alone
that make it too, so the rank that is least far never waits for one that is farther, and all get through.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from fourfold.config import RunFailure
from fourfold.layout import Layout
from fourfold.model.parallel import Pending
from fourfold.program import Program
from fourfold.runtime.collectives import AxisGroup
from fourfold.runtime.links import Link, neighbours
from fourfold.runtime.progress import STARTING, Position

ANSWER_SECONDS = 120.0
"""How long the others of a call may take to come to it."""
_MOST_BYTES = 64 << 20
"""Messages beyond this size take the same path through a network."""
_AFTER_GROUPS = 1 << 40
"""Orders below are those in which groups are made."""
Result = TypeVar("Result")
Kinds = Mapping[str, Mapping[str, int]]
"""By the axes of a group and the kind of a collective: bytes of the largest."""


@dataclass(frozen=True)
class FirstCall:
    """One call. `what` names it; `ranks` make it together; `order`: its number, the same on all of them. `start` begins it."""

    what: str
    ranks: tuple[int, ...]
    order: int
    start: Callable[[], Iterable[Pending]]


def kinds_of(programs: Iterable[Program]) -> Kinds:
    """The collectives of some programs, transfers left out."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for program in programs:
        for step in program.instructions:
            for each in step.collectives if not step.op.is_transfer else ():
                found[each.axes][each.kind] = max(each.bytes, found[each.axes].get(each.kind, 0))
    return found


def first_calls(
    groups: Mapping[str, AxisGroup],
    names: Iterable[str],
    layout: Layout,
    rank: int,
    kinds: Kinds,
    device: torch.device,
    world: Link | None = None,
) -> Iterator[FirstCall]:
    """First calls of a rank, in order. `names`: of the groups of all ranks. `kinds`: of this rank's programs. `world`: of all
    ranks, which the start and saves use."""
    named, everybody = sorted(names), tuple(range(layout.world_size))
    if world is not None:
        element = torch.zeros(1, device=device)
        yield FirstCall(
            "the first call over all ranks", everybody, _AFTER_GROUPS - 1, lambda: [world.all_reduce(element)]
        )
    for order, name in enumerate(named):
        group = groups.get(name)
        if group is not None:
            what = f"the first call over {name} (ranks {_listed(group.ranks)})"
            start = partial(_over_group, group, kinds.get(name, {"all_reduce": 0}), device)
            yield FirstCall(what, group.ranks, _AFTER_GROUPS + order, start)
    if layout.pp > 1:
        stages = layout.group_of(rank, ("pp",))
        for number, pair in enumerate(neighbours(layout, stages)):
            for upwards in (False, True):
                sender, receiver = pair if upwards else pair[::-1]
                what = f"the first transfer from rank {sender} to rank {receiver}"
                order = _AFTER_GROUPS + len(named) + 2 * number + upwards
                if rank in pair:
                    yield FirstCall(what, pair, order, partial(_transfer, groups["pp"], rank, pair, upwards, device))


def _over_group(group: AxisGroup, kinds: Mapping[str, int], device: torch.device) -> Iterator[Pending]:
    """One element by every kind of collective; over NCCL, which chooses its paths by size, then as many as the largest has."""
    link, size, others = group.link, group.size, [each for each in group.ranks if each != group.ranks[group.index]]
    following, before = group.ranks[(group.index + 1) % size], group.ranks[group.index - 1]

    def zeros(count: int) -> torch.Tensor:
        return torch.zeros(count, device=device)

    for kind in sorted({*kinds, "all_reduce"}):
        largest = min(kinds.get(kind, 0), _MOST_BYTES) // (4 * size)
        for n in (1, largest) if link.native and largest > 1 else (1,):
            if kind == "all_reduce":
                yield link.all_reduce(zeros(n * size if n > 1 else 1))
            elif kind == "all_to_all":
                yield link.all_to_all(zeros(n * size), zeros(n * size), None, None)
            elif kind == "shift":
                yield from link.exchange([(zeros(n), following)], [(zeros(n), before)])
            elif link.native and kind == "all_gather":
                yield link.all_gather(zeros(n * size), zeros(n))
            elif link.native:
                yield link.reduce_scatter(zeros(n), zeros(n * size))
            else:
                yield from link.exchange([(zeros(n), each) for each in others], [(zeros(n), each) for each in others])


def _transfer(
    group: AxisGroup, rank: int, pair: tuple[int, int], upwards: bool, device: torch.device
) -> Iterator[Pending]:
    element, other = torch.zeros(1, device=device), pair[1 - pair.index(rank)]
    sends = (rank == pair[0]) == upwards
    yield (group.link.send if sends else group.link.receive)(element, other, upwards, 0)


class AnswerDeadline:
    """Runs what waits for other ranks, each with a deadline. `record` notes its order on this rank's board; `positions` reads all
    boards."""

    def __init__(
        self,
        device: torch.device,
        record: Callable[[int], None] = lambda order: None,
        positions: Callable[[], Sequence[Position]] = tuple,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._device, self._record, self._positions, self._seconds = device, record, positions, seconds

    def connect(self, calls: Iterable[FirstCall]) -> None:
        """Makes the calls. Raises `RunFailure` as `wait_for` does."""
        for call in calls:
            self.wait_for(call.what, call.ranks, call.order, partial(self._join, call))

    def _join(self, call: FirstCall) -> None:
        for pending in call.start():
            pending.wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def wait_for(self, what: str, ranks: tuple[int, ...], order: int, run: Callable[[], Result]) -> Result:
        """The result of `run`, which all of `ranks` run. Nothing can interrupt what the libraries wait for, so that it is left to a
        thread where it is not over in time. Raises its error, or `RunFailure` that says who has not come to it."""
        self._record(order)
        done: Future[Result] = Future()

        def attempt() -> None:
            try:
                if self._device.type == "cuda":
                    torch.cuda.set_device(self._device)
                done.set_result(run())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=attempt, name="first-call", daemon=True).start()
        try:
            return done.result(self._seconds)
        except FutureTimeout:
            if done.done():
                raise
        raise RunFailure(
            f"{what} was not answered in {self._seconds:g} s: {_missing(ranks, order, self._positions())}; what helps: see what it "
            f"logged, and whether its machine reaches the others (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME name the network)"
        )


def _missing(ranks: tuple[int, ...], order: int, positions: Sequence[Position]) -> str:
    known = [rank for rank in ranks if rank < len(positions) and positions[rank].pid]
    behind = [rank for rank in known if positions[rank].kind == STARTING and positions[rank].counter < order]
    missing = sorted({*ranks} - {*known} | {*behind})
    if not missing:
        return "all of them came to it, and the network between them carries nothing"
    return f"rank{'s' if len(missing) > 1 else ''} {_listed(missing)} did not come to it"


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return ", ".join(map(str, ranks[:8])) + more
