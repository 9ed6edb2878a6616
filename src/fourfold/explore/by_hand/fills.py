"""Algorithms that can write all steps: fourfold's own, between the ranks as they are placed, and exchanges at doubling distance."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.cost.algorithms import AlgorithmStep, collective_steps
from fourfold.explore.by_hand.plan import Frame, HandMessage, How, Steps, renamed

Writer = Callable[[], Steps]


def known_fills(frame: Frame) -> Mapping[str, Writer]:
    """Algorithms of the kind over the ranks as they are placed, by name. `ring`: from rank to rank as they are numbered; all others
    take the ranks node by node."""
    kind, ranks = frame.kind, frame.ranks
    if kind == "broadcast":
        found: dict[str, Writer] = {
            "tree": lambda: _placed(frame, by_node(frame), _part("all_reduce", "tree", ranks, "broadcast from rank 0")),
            "scatter_all_gather": lambda: _placed(
                frame,
                by_node(frame),
                (
                    *_part("reduce_scatter", "tree", ranks, "scatter from rank 0"),
                    *_own("all_gather", "ring", ranks, ranks),
                ),
            ),
            "naive": lambda: _placed(
                frame, by_node(frame), _part("all_reduce", "naive", ranks, "broadcast from rank 0")
            ),
        }
        return found
    found = {"ring": lambda: _placed(frame, range(ranks), _own(kind, "ring", ranks, ranks))}
    if frame.nodes > 1:
        found["ring_by_node"] = lambda: _placed(frame, by_node(frame), _own(kind, "ring", ranks, ranks))
    held = {frame.node_of.count(node) for node in frame.node_of}
    block = min(held)
    if len(held) == 1 and 1 < block < ranks:
        found["hierarchical"] = lambda: _placed(frame, by_node(frame), _own(kind, "hierarchical", ranks, block))
    found["tree"] = lambda: _placed(frame, by_node(frame), _own(kind, "tree", ranks, ranks))
    found["naive"] = lambda: _placed(frame, by_node(frame), _own(kind, "naive", ranks, ranks))
    if ranks & (ranks - 1) == 0:
        found["doubling"] = lambda: _placed(frame, by_node(frame), doubling(kind, ranks))
        if kind == "all_reduce":
            found["halving_doubling"] = lambda: _placed(
                frame, by_node(frame), doubling("reduce_scatter", ranks) + doubling("all_gather", ranks)
            )
    return found


def fill_steps(name: str, frame: Frame) -> Steps:
    """All steps as an algorithm writes them. Raises `UserError`."""
    known = known_fills(frame)
    if name not in known:
        raise UserError(
            f"fill = {shortened(name)}: writes no {frame.kind} over {frame.ranks} ranks on {frame.nodes} nodes; allowed: "
            f"{', '.join(known)}; what works: {next(iter(known))}"
        )
    return known[name]()


def by_node(frame: Frame) -> Sequence[int]:
    """The ranks, node by node, rank 0 first."""
    first = frame.node_of[0]
    return sorted(range(frame.ranks), key=lambda rank: (frame.node_of[rank] != first, frame.node_of[rank], rank))


def doubling(kind: str, ranks: int) -> Steps:
    """Recursive doubling, or halving, between `ranks`, a power of two (Thakur et al. 2005): pairs at distance 1, 2, 4, ...
    exchange what they have. An all-reduce exchanges whole buffers: few steps, many bytes."""
    powers = [1 << power for power in range(ranks.bit_length() - 1)]
    everyone = range(ranks)
    found = []
    for far in powers[::-1] if kind == "reduce_scatter" else powers:
        step = []
        for rank in everyone:
            partner = rank ^ far
            if kind == "all_gather":
                chunks = [each for each in everyone if each // far == rank // far]
            elif kind == "reduce_scatter":
                chunks = [each for each in everyone if each // far == partner // far]
            else:
                chunks = [*everyone]
            how: How = "keep" if kind == "all_gather" else "add"
            step += [HandMessage(how, chunk, rank, partner) for chunk in chunks]
        found.append(tuple(step))
    return tuple(found)


def _own(kind: str, algorithm: str, ranks: int, block: int) -> Steps:
    return _hand(collective_steps(kind, algorithm, ranks, block))


def _part(kind: str, algorithm: str, ranks: int, phase: str) -> Steps:
    """Steps of one phase."""
    return _hand(step for step in collective_steps(kind, algorithm, ranks, ranks) if step.phase == phase)


def _hand(steps: Iterable[AlgorithmStep]) -> Steps:
    return tuple(
        tuple(
            HandMessage("add" if each.how == "add" else "keep", chunk, each.source, each.target)
            for each in step.messages
            for chunk in each.chunks
        )
        for step in steps
    )


def _placed(frame: Frame, order: Sequence[int], steps: Steps) -> Steps:
    """An algorithm's ranks in this order, and its chunk r as the one that belongs to its rank r."""
    return renamed(steps, order.__getitem__, lambda chunk: frame.shards[order[chunk]])
