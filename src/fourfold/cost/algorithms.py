"""Algorithms of collectives, step by step: which rank sends which chunks to whom.

A buffer is divided into as many chunks as there are ranks; chunk r is the one that rank r holds alone after a reduce-scatter, or
before an all-gather. Chunks of an all-to-all are numbered source * ranks + target. In a step no rank sends, or is sent, more than
one message. Rings: Patarasuk & Yuan 2009; trees and exchanges: Thakur et al. 2005.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

How = Literal["add", "copy", "move"]
Contents = dict[int, int]
"""Chunks that a rank holds, each with the ranks whose values are in it, as bits."""


@dataclass(frozen=True, slots=True)
class ChunkMessage:
    """`source` sends `chunks` to `target`. `add`: the target adds them to its own; `copy`: the source keeps them as well."""

    source: int
    target: int
    chunks: tuple[int, ...]
    how: How


@dataclass(frozen=True, slots=True)
class AlgorithmStep:
    """Messages that are sent at once. `phase`: what this step and those like it do together."""

    phase: str
    messages: tuple[ChunkMessage, ...]


ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "tree", "hierarchical", "naive"),
    "reduce_scatter": ("ring", "tree", "hierarchical", "naive"),
    "all_gather": ("ring", "tree", "hierarchical", "naive"),
    "all_to_all": ("pairwise", "hierarchical", "ring"),
}
"""Algorithms of each kind, the usual one first. `naive`: all through rank 0, one message at a time."""


def collective_steps(kind: str, algorithm: str, ranks: int, block: int) -> list[AlgorithmStep]:
    """The steps of a collective. `block`: ranks that lie together, a divisor of `ranks`; a hierarchical one goes through a block
    before it leaves it. Raises `ValueError`."""
    if algorithm not in ALGORITHMS.get(kind, ()) or ranks < 2 or ranks % block:
        raise ValueError(f"{kind} by {algorithm} over {ranks} ranks in blocks of {block}")
    match algorithm:
        case "pairwise":
            return _exchanges(ranks, ranks)
        case "hierarchical" if kind == "all_to_all":
            return _exchanges(ranks, block)
        case "ring" if kind == "all_to_all":
            return _relays(ranks)
        case "ring":
            return _rings(kind, ranks, ranks)
        case "hierarchical":
            return _rings(kind, ranks, block)
        case "tree":
            return _through_root(kind, ranks, _tree(ranks))
    return _through_root(kind, ranks, [[(rank, 0, range(rank, rank + 1))] for rank in range(1, ranks)])


Ring = tuple[Sequence[int], Sequence[tuple[int, ...]]]
"""Members in order, and the chunks that each of them owns."""


def _rings(kind: str, ranks: int, block: int) -> list[AlgorithmStep]:
    """Rings within blocks and rings between the ranks of equal place in each: in with reductions, out with gathers."""
    places, blocks = range(block), range(ranks // block)
    parts = [tuple(range(place, ranks, block)) for place in places]
    inside: list[Ring] = [(range(each * block, (each + 1) * block), parts) for each in blocks]
    across: list[Ring] = [(part, [(chunk,) for chunk in part]) for part in parts]
    scopes = (" within blocks", " between blocks") if 1 < block < ranks else ("", "")
    found: list[AlgorithmStep] = []
    if kind != "all_gather":
        found += _turns("reduce-scatter" + scopes[0], inside, "add") + _turns(
            "reduce-scatter" + scopes[1], across, "add"
        )
    if kind != "reduce_scatter":
        found += _turns("all-gather" + scopes[1], across, "copy") + _turns("all-gather" + scopes[0], inside, "copy")
    return found


def _turns(phase: str, rings: Sequence[Ring], how: How) -> list[AlgorithmStep]:
    """Rings beside each other; each member hands on what came in the step before, and begins so that its own part comes last
    (`add`) or goes first (`copy`)."""
    size, ahead = len(rings[0][0]), 1 if how == "add" else 0
    return [
        AlgorithmStep(
            phase,
            tuple(
                ChunkMessage(members[place], members[(place + 1) % size], parts[(place - ahead - turn) % size], how)
                for members, parts in rings
                for place in range(size)
            ),
        )
        for turn in range(size - 1)
    ]


Edge = tuple[int, int, range]
"""A rank, the one above it, and the ranks from it downwards."""


def _tree(ranks: int) -> list[list[Edge]]:
    """A binomial tree, from the leaves to rank 0: each round halves the ranks that are left."""
    spans = [1 << power for power in range((ranks - 1).bit_length())]
    return [
        [(rank, rank - span, range(rank, min(rank + span, ranks))) for rank in range(span, ranks, 2 * span)]
        for span in spans
    ]


def _through_root(kind: str, ranks: int, rounds: Sequence[Sequence[Edge]]) -> list[AlgorithmStep]:
    """Up to rank 0 and down again."""
    everything = tuple(range(ranks))
    reduces, gathers = kind != "all_gather", kind != "reduce_scatter"
    found = []
    for edges in rounds:
        up = [
            ChunkMessage(rank, above, everything, "add") if reduces else ChunkMessage(rank, above, tuple(below), "copy")
            for rank, above, below in edges
        ]
        found.append(AlgorithmStep("reduce to rank 0" if reduces else "gather to rank 0", tuple(up)))
    for edges in reversed(rounds):
        down = []
        for rank, above, below in edges:
            lacks = everything if reduces else tuple(chunk for chunk in everything if chunk not in below)
            down.append(
                ChunkMessage(above, rank, lacks, "copy") if gathers else ChunkMessage(above, rank, tuple(below), "move")
            )
        found.append(AlgorithmStep("broadcast from rank 0" if gathers else "scatter from rank 0", tuple(down)))
    return found


def _exchanges(ranks: int, block: int) -> list[AlgorithmStep]:
    """Within a block each rank gives to every other what belongs to its place in any block; then to its like in other blocks."""
    found = []
    hierarchical = 1 < block < ranks
    for far in range(1, block):
        messages = []
        for rank in range(ranks):
            target = rank // block * block + (rank + far) % block
            chunks = tuple(rank * ranks + goal for goal in range(target % block, ranks, block))
            messages.append(ChunkMessage(rank, target, chunks, "move"))
        found.append(AlgorithmStep("exchange within blocks" if hierarchical else "exchange", tuple(messages)))
    for far in range(1, ranks // block):
        messages = []
        for rank in range(ranks):
            target, first = (rank + far * block) % ranks, rank // block * block
            chunks = tuple(source * ranks + target for source in range(first, first + block))
            messages.append(ChunkMessage(rank, target, chunks, "move"))
        found.append(AlgorithmStep("exchange between blocks" if hierarchical else "exchange", tuple(messages)))
    return found


def _relays(ranks: int) -> list[AlgorithmStep]:
    """Each rank hands to the next what is not for itself."""
    found = []
    for turn in range(1, ranks):
        messages = []
        for rank in range(ranks):
            source = (rank - turn + 1) % ranks
            chunks = tuple(source * ranks + (source + far) % ranks for far in range(turn, ranks))
            messages.append(ChunkMessage(rank, (rank + 1) % ranks, chunks, "move"))
        found.append(AlgorithmStep("hand on", tuple(messages)))
    return found


def contents_before(kind: str, ranks: int) -> list[Contents]:
    """Chunks of each rank before a collective."""
    if kind == "all_gather":
        return [{rank: 1 << rank} for rank in range(ranks)]
    if kind == "all_to_all":
        return [{rank * ranks + target: 1 << rank for target in range(ranks)} for rank in range(ranks)]
    return [dict.fromkeys(range(ranks), 1 << rank) for rank in range(ranks)]


def contents_after(contents: Sequence[Contents], messages: Iterable[ChunkMessage]) -> list[Contents]:
    """Chunks of each rank after a step. Raises `ValueError` where a rank sends what it lacks, or a value is added twice."""
    found = [dict(each) for each in contents]
    for message in messages:
        for chunk in message.chunks:
            if message.how != "copy":
                found[message.source].pop(chunk, None)
    for message in messages:
        for chunk in message.chunks:
            sent, target = contents[message.source].get(chunk, 0), found[message.target]
            own = target.get(chunk, 0) if message.how == "add" else 0
            if not sent or own & sent:
                raise ValueError(
                    f"rank {message.source} sends chunk {chunk} to rank {message.target}: {sent:b} and {own:b}"
                )
            target[chunk] = own | sent
    return found
