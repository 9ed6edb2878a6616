"""A collective as a person places it, and its two texts: the short one of an address, and that of a file."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.explore.board.request import BETWEEN

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SHARDED: tuple[Kind, ...] = ("all_gather", "reduce_scatter")
"""Kinds that leave open which chunk a rank begins, or ends, with."""
How = Literal["add", "keep"]
RANKS = (2, 8)
"""The least and the most."""
MOST_STEPS = 64
_LETTERS: dict[str, How] = {"A": "add", "K": "keep"}
_TOKEN = re.compile(r"([AK])(\d{1,2}(?:,\d{1,2})*)\.(\d{1,2})-(\d{1,2})")
_WORKS = "A3.0-1 (chunk 3 goes from rank 0 to rank 1, which adds it), K0,3.0-1 (chunks 0 and 3, which it keeps)"


@dataclass(frozen=True, slots=True)
class HandMessage:
    """One chunk on its way from `source` to `target`, which adds it to its own or keeps it in place of its own. The sender has it
    still."""

    how: How
    chunk: int
    source: int
    target: int


Steps = tuple[tuple[HandMessage, ...], ...]
"""Messages that are sent at once, step by step."""


@dataclass(frozen=True)
class Frame:
    """Where a collective takes place. `node_of`: the node of every rank; `shards`: the chunk that rank r holds alone before an
    all-gather, or in the end of a reduce-scatter. A broadcast begins on rank 0. A buffer has as many chunks as there are ranks."""

    kind: Kind
    nodes: int
    node_of: tuple[int, ...]
    shards: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return len(self.node_of)

    @property
    def seats(self) -> int:
        """Ranks that a node has room for."""
        return seats_of(self.ranks, self.nodes)


@dataclass(frozen=True)
class HandPlan:
    """Messages that a person placed, which may be wrong."""

    frame: Frame
    steps: Steps

    @property
    def link(self) -> str:
        """The steps as a link has them, without empty ones at the end."""
        return BETWEEN.join(map(step_text, self.steps)).rstrip(BETWEEN)

    @property
    def text(self) -> str:
        """The file, which `plan_of_file` reads."""
        frame = self.frame
        lines = [
            "# A collective by hand: each step's messages, A adds, K keeps, CHUNKS.FROM-TO",
            f"kind {frame.kind}",
            f"nodes {frame.nodes}",
            f"node_of {' '.join(map(str, frame.node_of))}",
            f"shards {' '.join(map(str, frame.shards))}",
            *(f"step {step_text(step)}".rstrip() for step in self.steps),
        ]
        return "\n".join(lines) + "\n"


def seats_of(ranks: int, nodes: int) -> int:
    """Seats of a node, where all nodes have as many."""
    return -(-ranks // nodes)


def step_text(step: Iterable[HandMessage]) -> str:
    """Messages of one step; those between the same ranks are one word."""
    found: dict[tuple[How, int, int], list[int]] = {}
    for each in step:
        found.setdefault((each.how, each.source, each.target), []).append(each.chunk)
    letter = {how: key for key, how in _LETTERS.items()}
    return " ".join(
        f"{letter[how]}{','.join(map(str, chunks))}.{source}-{target}"
        for (how, source, target), chunks in found.items()
    )


def read_steps(text: str, ranks: int) -> Steps:
    """The steps of a link. Raises `UserError`."""
    steps = text.split(BETWEEN) if text else []
    if len(steps) > MOST_STEPS:
        raise UserError(
            f"steps: {len(steps)} steps; allowed: {MOST_STEPS} at most; what works: the ring's {2 * (ranks - 1)}"
        )
    return tuple(_read_step(step, ranks, f"steps: step {number}") for number, step in enumerate(steps, 1))


def _read_step(text: str, ranks: int, where: str) -> tuple[HandMessage, ...]:
    found = []
    for word in text.split():
        parts = _TOKEN.fullmatch(word)
        if parts is None:
            raise UserError(f"{where}: {shortened(word)} is no message; what works: {_WORKS}")
        letter, chunks, *ends = parts.groups()
        source, target = map(int, ends)
        for chunk in map(int, chunks.split(",")):
            for name, number in (("chunk", chunk), ("rank", source), ("rank", target)):
                if number >= ranks:
                    raise UserError(
                        f"{where}: {word}: there is no {name} {number}; allowed: 0 to {ranks - 1}; what works: K0.0-1"
                    )
            found.append(HandMessage(_LETTERS[letter], chunk, source, target))
    return tuple(found)


def read_frame(kind: Kind, nodes: int, node_of: Iterable[int], shards: Iterable[int]) -> Frame:
    """Raises `UserError` where a node has too many ranks, or shards are not one for each rank."""
    frame = Frame(kind, nodes, tuple(node_of), tuple(shards))
    least, most = RANKS
    if not least <= frame.ranks <= most or not 1 <= nodes <= frame.ranks:
        raise UserError(
            f"{frame.ranks} ranks on {nodes} nodes: allowed: {least} to {most} ranks, 1 to so many nodes; what works: 4 ranks on 2 "
            "nodes, node_of 0 0 1 1"
        )
    works = " ".join(map(str, placed_in_order(frame.ranks, nodes)))
    for rank, node in enumerate(frame.node_of):
        if not 0 <= node < nodes:
            raise UserError(f"node_of: rank {rank} is on node {node}; allowed: 0 to {nodes - 1}; what works: {works}")
    for node in range(nodes):
        held = frame.node_of.count(node)
        if held > frame.seats:
            raise UserError(
                f"node_of: node {node} has {held} ranks; allowed: {frame.seats} at most; what works: {works}"
            )
    if sorted(frame.shards) != [*range(frame.ranks)]:
        stated = " ".join(map(str, frame.shards))
        plain = " ".join(map(str, range(frame.ranks)))
        raise UserError(f"shards {stated}: allowed: each chunk of 0 to {frame.ranks - 1} once; what works: {plain}")
    return frame


def placed_in_order(ranks: int, nodes: int) -> tuple[int, ...]:
    """The node of every rank where node after node is filled."""
    return tuple(rank // seats_of(ranks, nodes) for rank in range(ranks))


def plan_of_file(text: str) -> HandPlan:
    """The plan of a file. Raises `UserError`."""
    stated: dict[str, str] = {}
    steps = []
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        key, _, value = line.split("#", 1)[0].strip().partition(" ")
        if key == "step":
            steps.append((number, value))
        elif key in ("kind", "nodes", "node_of", "shards") and key not in stated:
            stated[key] = value.strip()
        elif key:
            raise UserError(
                f"file:{number}: {shortened(key)}; allowed: kind, nodes, node_of, shards once, and step; what works: step K0.0-1"
            )
    for key, works in (("kind", "all_reduce"), ("node_of", "0 0 1 1")):
        if key not in stated:
            raise UserError(f"file: {key} is missing; what works: a line '{key} {works}'")
    kind = next((each for each in KINDS if each == stated["kind"]), None)
    if kind is None:
        raise UserError(
            f"file: kind {shortened(stated['kind'])}: allowed: {', '.join(KINDS)}; what works: kind all_reduce"
        )
    node_of = _numbers("node_of", stated["node_of"])
    [nodes] = _numbers("nodes", stated["nodes"], one=True) if "nodes" in stated else [max(node_of, default=0) + 1]
    shards = _numbers("shards", stated["shards"]) if "shards" in stated else range(len(node_of))
    frame = read_frame(kind, nodes, node_of, shards)
    if len(steps) > MOST_STEPS:
        raise UserError(f"file: {len(steps)} steps; allowed: {MOST_STEPS} at most; what works: fewer lines 'step'")
    return HandPlan(frame, tuple(_read_step(value, frame.ranks, f"file:{number}") for number, value in steps))


def _numbers(key: str, text: str, one: bool = False) -> list[int]:
    words = text.split()
    if not all(re.fullmatch(r"\d{1,3}", word) for word in words) or (one and len(words) != 1):
        works = "2" if one else "0 1 2 3"
        raise UserError(f"file: {key} {shortened(text)}: allowed: numbers; what works: {key} {works}")
    return [int(word) for word in words]


def renamed(steps: Steps, rank: Callable[[int], int], chunk: Callable[[int], int]) -> Steps:
    """The steps between other ranks, of other chunks."""
    return tuple(
        tuple(HandMessage(each.how, chunk(each.chunk), rank(each.source), rank(each.target)) for each in step)
        for step in steps
    )
