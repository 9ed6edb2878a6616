"""The price of a plan on the links of its cluster: its steps as `explore.collective` prices those of fourfold's own algorithms."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

from fourfold.config import UserError
from fourfold.cost.algorithms import AlgorithmStep, ChunkMessage
from fourfold.explore.by_hand.plan import Frame, HandMessage, Steps
from fourfold.explore.collective import PlacedRanks, PricedSteps
from fourfold.hardware import load_cluster, named_with

Pair = tuple[int, int]
"""A sender and its target."""


@lru_cache(maxsize=256)
def placed_ranks(frame: Frame, cluster: str) -> PlacedRanks:
    """The ranks on devices: those of one node beside each other, in their order. Raises `UserError`."""
    node = load_cluster(cluster).node_devices
    if frame.seats > node:
        raise UserError(
            f"cluster = {cluster!r}: {frame.ranks} ranks on {frame.nodes} nodes are {frame.seats} in a node, which has {node} "
            f"devices; what works: nodes = {-(-frame.ranks // node)}"
        )
    before = Counter[int]()
    places = []
    for each in frame.node_of:
        places.append(each * node + before[each])
        before[each] += 1
    return PlacedRanks(load_cluster(named_with(cluster, frame.nodes * node)), tuple(places))


@dataclass(frozen=True)
class HandPrice:
    """Steps that run, priced. All that a rank sends another in one step is one message."""

    placed: PlacedRanks
    steps: Steps
    buffer_bytes: float

    @property
    def chunk_bytes(self) -> float:
        return self.buffer_bytes / len(self.placed.places)

    @cached_property
    def message_seconds(self) -> list[dict[Pair, float]]:
        """Seconds of every message of every step."""
        sent = [AlgorithmStep("", messages_of(step)) for step in self.steps]
        times = PricedSteps(self.placed, sent).message_seconds(self.chunk_bytes)
        return [
            {(each.source, each.target): time for each, time in zip(step.messages, row, strict=True)}
            for step, row in zip(sent, times, strict=True)
        ]

    @property
    def step_seconds(self) -> list[float]:
        """A step ends with its slowest message; one without messages takes no time."""
        return [max(step.values(), default=0.0) for step in self.message_seconds]

    @property
    def seconds(self) -> float:
        return sum(self.step_seconds)

    @property
    def num_steps(self) -> int:
        """Steps with messages."""
        return sum(bool(step) for step in self.steps)

    @cached_property
    def pair_bytes(self) -> dict[Pair, float]:
        """Bytes from one rank to another, over all steps."""
        chunks = Counter((each.source, each.target) for step in self.steps for each in step)
        return {pair: number * self.chunk_bytes for pair, number in sorted(chunks.items())}

    def level(self, pair: Pair) -> int:
        """The interconnect level between two ranks: 0 inside a node."""
        return self.placed.level(ChunkMessage(*pair, (), "copy"))

    @property
    def sent_bytes(self) -> float:
        """The bytes of the rank that sends most."""
        sent = Counter(each.source for step in self.steps for each in step)
        return max(sent.values(), default=0) * self.chunk_bytes

    @property
    def network_bytes(self) -> float:
        """Bytes that leave a node, all ranks together."""
        return float(sum(size for pair, size in self.pair_bytes.items() if self.level(pair) > 0))


def messages_of(step: tuple[HandMessage, ...]) -> tuple[ChunkMessage, ...]:
    """The messages of a step: all that goes from one rank to another, together."""
    found: dict[Pair, list[int]] = {}
    for each in step:
        found.setdefault((each.source, each.target), []).append(each.chunk)
    return tuple(ChunkMessage(*pair, tuple(chunks), "copy") for pair, chunks in found.items())
