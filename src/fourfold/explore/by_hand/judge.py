"""The judge of a plan: chunks that ranks hold after every step, the first message that cannot be, what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fourfold.cost.algorithms import Contents, contents_before
from fourfold.explore.by_hand.plan import Frame, HandMessage, HandPlan

FaultKind = Literal["self", "lacks", "writes", "ports", "nothing", "twice"]


@dataclass(frozen=True)
class HandFault:
    """The first message that cannot be, its step (from 0) and its place there. `sentence`: with step, rank and chunk, from 1 and 0
    as the page counts them."""

    kind: FaultKind
    step: int
    index: int
    message: HandMessage
    sentence: str


@dataclass(frozen=True)
class Lack:
    """A chunk that a rank should have. `lacks`: the ranks whose values are not in it; all of them where the rank has none."""

    rank: int
    chunk: int
    lacks: tuple[int, ...]
    holds: bool


@dataclass(frozen=True)
class Judgement:
    """`contents`: of every rank before the first step and after each that runs, as bits of the ranks that are summed."""

    contents: tuple[tuple[Contents, ...], ...]
    fault: HandFault | None
    lacks: tuple[Lack, ...]

    @property
    def ran(self) -> int:
        """Steps that run."""
        return len(self.contents) - 1

    @property
    def is_reached(self) -> bool:
        return self.fault is None and not self.lacks


def judged(plan: HandPlan) -> Judgement:
    """The plan, run until its end or its first fault."""
    contents = [first_contents(plan.frame)]
    fault = None
    for step, messages in enumerate(plan.steps):
        fault = step_fault(step, messages, contents[-1])
        if fault is not None:
            break
        contents.append(after_step(contents[-1], messages))
    return Judgement(tuple(contents), fault, lacks_of(plan.frame, contents[-1]))


def first_contents(frame: Frame) -> tuple[Contents, ...]:
    """The chunks that every rank begins with."""
    if frame.kind == "all_gather":
        return tuple({chunk: 1 << rank} for rank, chunk in enumerate(frame.shards))
    if frame.kind == "broadcast":
        return (dict.fromkeys(range(frame.ranks), 1), *({} for _ in range(frame.ranks - 1)))
    return tuple(contents_before(frame.kind, frame.ranks))


def wanted_contents(frame: Frame) -> tuple[Contents, ...]:
    """The chunks that every rank has to hold in the end; it may hold more."""
    every = (1 << frame.ranks) - 1
    if frame.kind == "reduce_scatter":
        return tuple({chunk: every} for chunk in frame.shards)
    if frame.kind == "all_reduce":
        full = dict.fromkeys(range(frame.ranks), every)
    elif frame.kind == "all_gather":
        full = {chunk: 1 << rank for rank, chunk in sorted(enumerate(frame.shards), key=lambda each: each[1])}
    else:
        full = dict.fromkeys(range(frame.ranks), 1)
    return (full,) * frame.ranks


def after_step(contents: Sequence[Contents], messages: Sequence[HandMessage]) -> tuple[Contents, ...]:
    """All messages carry what their senders held before the step."""
    found = [dict(each) for each in contents]
    for each in messages:
        own = contents[each.target].get(each.chunk, 0) if each.how == "add" else 0
        found[each.target][each.chunk] = own | contents[each.source][each.chunk]
    return tuple(found)


def step_fault(step: int, messages: Sequence[HandMessage], contents: Sequence[Contents]) -> HandFault | None:
    """The first message of a step that cannot be. As in the algorithms of `cost.algorithms`, a rank sends to one rank and gets
    from one in a step: its port carries one message each way."""
    to, by, written = dict[int, int](), dict[int, int](), dict[tuple[int, int], int]()
    for index, each in enumerate(messages):
        kind, words = _wrong(each, contents, to, by, written)
        if kind is not None:
            sentence = f"step {step + 1}: {words}"
            return HandFault(kind, step, index, each, sentence)
        to[each.source], by[each.target] = each.target, each.source
        written[each.target, each.chunk] = each.source
    return None


def _wrong(
    each: HandMessage,
    contents: Sequence[Contents],
    to: dict[int, int],
    by: dict[int, int],
    written: dict[tuple[int, int], int],
) -> tuple[FaultKind | None, str]:
    source, target, chunk = each.source, each.target, each.chunk
    sent, own = contents[source].get(chunk, 0), contents[target].get(chunk, 0)
    if source == target:
        return "self", f"rank {source} sends chunk {chunk} to itself; send it to another rank, or take the message out"
    if not sent:
        return "lacks", (
            f"rank {source} sends chunk {chunk}, which it does not hold before this step; let it get there in an earlier one"
        )
    if (target, chunk) in written:
        first = written[target, chunk]
        who = f"twice by rank {source}" if first == source else f"by rank {first} and by rank {source}"
        return "writes", f"chunk {chunk} of rank {target} is written {who}; leave one of them for another step"
    if to.get(source, target) != target:
        return "ports", (
            f"rank {source} sends chunk {chunk} to rank {target} while it sends to rank {to[source]}; a rank sends to one at a "
            "time: leave one of them for another step"
        )
    if by.get(target, source) != source:
        return "ports", (
            f"rank {target} gets chunk {chunk} of rank {source} while rank {by[target]} sends to it; a rank gets from one at a "
            "time: leave one of them for another step"
        )
    if each.how == "add" and not own:
        return (
            "nothing",
            f"rank {target} adds chunk {chunk} of rank {source} to nothing: it holds none; let it keep the chunk",
        )
    if each.how == "add" and own & sent:
        twice = ranks_text(ranks_of(own & sent))
        return "twice", f"rank {target} adds chunk {chunk} of rank {source}, and the sum counts {twice} twice"
    return None, ""


def lacks_of(frame: Frame, contents: Sequence[Contents]) -> tuple[Lack, ...]:
    """The chunks that are missing, rank by rank."""
    return tuple(
        Lack(rank, chunk, ranks_of(bits & ~own.get(chunk, 0)), chunk in own)
        for rank, (own, wanted) in enumerate(zip(contents, wanted_contents(frame), strict=True))
        for chunk, bits in wanted.items()
        if own.get(chunk, 0) & bits != bits
    )


def lack_text(lacks: Sequence[Lack]) -> str:
    """The first lack in a sentence, and how many there are beside it."""
    first = lacks[0]
    if first.holds:
        are = "are" if len(first.lacks) > 1 else "is"
        words = f"in chunk {first.chunk} of rank {first.rank} {ranks_text(first.lacks)} {are} not summed yet"
    else:
        words = f"rank {first.rank} lacks chunk {first.chunk}"
    others = len(lacks) - 1
    return f"{words}; {others} more {'chunk is' if others == 1 else 'chunks are'} missing" if others else words


def reached_text(frame: Frame, steps: int) -> str:
    """A sentence on what holds in the end."""
    after = f"after {steps} step{'' if steps == 1 else 's'}"
    summed = f"summed over all {frame.ranks} ranks, each counted once"
    if frame.kind == "reduce_scatter":
        return f"{after} every rank holds its chunk, {summed}"
    if frame.kind == "all_reduce":
        return f"{after} every rank holds all {frame.ranks} chunks, {summed}"
    return f"{after} every rank holds all {frame.ranks} chunks"


def ranks_of(bits: int) -> tuple[int, ...]:
    """The ranks of set bits."""
    return tuple(rank for rank in range(bits.bit_length()) if bits >> rank & 1)


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 1 and 2`, `ranks 1, 2 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
