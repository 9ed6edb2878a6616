"""A collective step by step on the links of a cluster. Units are in the names; a cell is a chunk in a place of a buffer."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

from fourfold.config import UserError
from fourfold.cost.algorithms import (
    ALGORITHMS,
    AlgorithmStep,
    ChunkMessage,
    Contents,
    collective_steps,
    contents_after,
    contents_before,
)
from fourfold.cost.collectives import collective_seconds, level_between, ranks_span, transfer_seconds
from fourfold.cost.fitted import fitted
from fourfold.hardware import Cluster, load_cluster, named_with
from fourfold.results.record import record

Cell = tuple[int, int] | None
"""A chunk, and of how many ranks it has the values; None: empty."""


@record
class MessageDocument:
    """`source` sends `chunks` to `target`. `how`: add, copy or move. `level`: the interconnect level that it goes through."""

    source: int
    target: int
    chunks: list[int]
    how: str
    bytes: float
    level: int
    seconds: float


@record
class CollectiveStep:
    """Messages that are sent at once. The step ends with the slowest. `cells`: the cells of every rank after it."""

    phase: str
    begins_seconds: float
    seconds: float
    messages: list[MessageDocument]
    cells: list[list[Cell]]


@record
class PhaseDocument:
    """Steps that do one thing together, from step `first` on."""

    phase: str
    first: int
    num_steps: int
    seconds: float


@record
class CrossedLevel:
    """A level of the cluster. `bytes_per_second`, `latency_seconds`: of one device, one direction, as the maker states them."""

    name: str
    kind: str
    devices: int
    bytes_per_second: float
    latency_seconds: float
    sent_bytes: float


@record
class AlgorithmDocument:
    """An algorithm in total. `sent_bytes`, `received_bytes`: of the rank with most; `network_bytes`: leave a node, all ranks
    together. `sweep_seconds`: on buffers of `sweep_bytes`."""

    algorithm: str
    num_steps: int
    sent_bytes: float
    received_bytes: float
    network_bytes: float
    seconds: float
    sweep_seconds: list[float]


@record
class CollectiveDocument:
    """A collective on a cluster's links. `places`: the device of each rank; `block`: ranks that a hierarchical algorithm takes
    together. `seconds`: of the steps, one after the other; `priced_seconds`: what a simulated training step pays for it, with
    rings beside each other and the better of ring and tree."""

    kind: str
    algorithm: str
    cluster: str
    ranks: int
    block: int
    places: list[int]
    nodes: list[list[int]]
    buffer_bytes: float
    chunk_bytes: float
    levels: list[CrossedLevel]
    first: list[list[Cell]]
    steps: list[CollectiveStep]
    phases: list[PhaseDocument]
    seconds: float
    priced_seconds: float
    algorithms: list[AlgorithmDocument]
    sweep_bytes: list[float]
    sweep_priced_seconds: list[float]


SWEEP_BYTES = tuple(2.0**power for power in range(10, 35, 2))
"""Buffers of 1 KiB to 16 GiB."""


@dataclass(frozen=True)
class PlacedRanks:
    """Ranks on a cluster's devices, `per_node` in each node."""

    cluster: Cluster
    places: tuple[int, ...]

    @classmethod
    def of(cls, name: str, ranks: int, per_node: int) -> "PlacedRanks":
        """The first nodes of the cluster `name`, as many as are needed. Raises `UserError`."""
        node = load_cluster(name).node_devices
        per_node = min(per_node, node, ranks)
        nodes = -(-ranks // per_node)
        cluster = load_cluster(named_with(name, nodes * node))
        return cls(cluster, tuple(rank // per_node * node + rank % per_node for rank in range(ranks)))

    @property
    def nodes(self) -> list[list[int]]:
        """Ranks of each node."""
        found: dict[int, list[int]] = {}
        for rank, place in enumerate(self.places):
            found.setdefault(place // self.cluster.node_devices, []).append(rank)
        return list(found.values())

    @property
    def block(self) -> int:
        """The most ranks that lie together wherever the ranks are divided by it."""
        return gcd(len(self.places), len(self.nodes[0]))

    def level(self, message: ChunkMessage) -> int:
        """The interconnect level that a message goes through."""
        return level_between(self.places[message.source], self.places[message.target], self.cluster)

    def priced(self, kind: str, size: float) -> float:
        """Seconds that a simulated training step pays for the collective on a buffer of `size` bytes."""
        span = ranks_span(self.places, self.cluster, self.cluster.devices)
        return collective_seconds(kind, size / fitted().link_share, span, self.cluster, fitted().link_constants)


@dataclass(frozen=True)
class PricedSteps:
    """The steps of an algorithm on placed ranks."""

    placed: PlacedRanks
    steps: Sequence[AlgorithmStep]

    @cached_property
    def _crossed(self) -> list[list[tuple[ChunkMessage, int, int]]]:
        """Messages of each step with their level, and how many of the step go through the same block of it."""
        found = []
        for step in self.steps:
            levels = [self.placed.level(each) for each in step.messages]
            blocks = [
                (level, self.placed.places[each.source] // self.placed.cluster.levels[level].devices)
                for each, level in zip(step.messages, levels, strict=True)
            ]
            beside = Counter(blocks)
            found.append([(each, b[0], beside[b]) for each, b in zip(step.messages, blocks, strict=True)])
        return found

    def message_seconds(self, chunk_bytes: float) -> list[list[float]]:
        """Seconds of every message of every step."""
        known: dict[tuple[int, int, int], float] = {}
        found = []
        for step in self._crossed:
            times = []
            for message, level, senders in step:
                key = (level, len(message.chunks), senders)
                if key not in known:
                    ends = self.placed.places[message.source], self.placed.places[message.target]
                    size = len(message.chunks) * chunk_bytes / fitted().link_share
                    known[key] = transfer_seconds(size, *ends, self.placed.cluster, senders, fitted().link_constants)
                times.append(known[key])
            found.append(times)
        return found

    def seconds(self, chunk_bytes: float) -> float:
        """Seconds of all steps; each ends with its slowest message."""
        return sum(map(max, self.message_seconds(chunk_bytes)))

    def total(self, algorithm: str, buffer_bytes: float) -> dict[str, Any]:
        """`AlgorithmDocument`."""
        ranks = len(self.placed.places)
        sent, received, network = Counter[int](), Counter[int](), 0
        for step in self._crossed:
            for message, level, _ in step:
                sent[message.source] += len(message.chunks)
                received[message.target] += len(message.chunks)
                network += len(message.chunks) * (level > 0)
        chunk = buffer_bytes / ranks
        return {
            "algorithm": algorithm,
            "num_steps": len(self.steps),
            "sent_bytes": max(sent.values()) * chunk,
            "received_bytes": max(received.values()) * chunk,
            "network_bytes": network * chunk,
            "seconds": self.seconds(chunk),
            "sweep_seconds": [self.seconds(size / ranks) for size in SWEEP_BYTES],
        }

    def rows(self, kind: str, chunk_bytes: float) -> tuple[list[Any], list[dict[str, Any]]]:
        """The cells before, and the steps with the cells after each: `CollectiveStep`."""
        contents = contents_before(kind, len(self.placed.places))
        cells = [[*range(len(self.placed.places))] if kind != "all_to_all" else [*each] for each in contents]
        first, begins, found = _drawn(contents, cells), 0.0, []
        for step, crossed, times in zip(self.steps, self._crossed, self.message_seconds(chunk_bytes), strict=True):
            contents = contents_after(contents, step.messages)
            if kind == "all_to_all":
                cells = [_placed(old, now) for old, now in zip(cells, contents, strict=True)]
            messages = [
                {
                    "source": each.source,
                    "target": each.target,
                    "chunks": list(each.chunks),
                    "how": each.how,
                    "bytes": len(each.chunks) * chunk_bytes,
                    "level": level,
                    "seconds": seconds,
                }
                for (each, level, _), seconds in zip(crossed, times, strict=True)
            ]
            row = {"phase": step.phase, "begins_seconds": begins, "seconds": max(times), "messages": messages}
            found.append({**row, "cells": _drawn(contents, cells)})
            begins += max(times)
        return first, found


def _phases(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps of one phase, together: `PhaseDocument`."""
    found: list[dict[str, Any]] = []
    for index, step in enumerate(steps):
        if not found or found[-1]["phase"] != step["phase"]:
            found.append({"phase": step["phase"], "first": index, "num_steps": 0, "seconds": 0.0})
        found[-1]["num_steps"] += 1
        found[-1]["seconds"] += step["seconds"]
    return found


def _drawn(contents: Sequence[Contents], cells: Sequence[Sequence[int]]) -> list[list[tuple[int, int] | None]]:
    """Cells of every rank: the chunk in each, and of how many ranks it has the values."""
    return [
        [(chunk, own[chunk].bit_count()) if chunk in own else None for chunk in chunks]
        for own, chunks in zip(contents, cells, strict=True)
    ]


def _placed(old: Sequence[int], now: Contents) -> list[int]:
    """Chunks that came take the cells of those that left."""
    came = iter(chunk for chunk in now if chunk not in old)
    return [chunk if chunk in now else next(came) for chunk in old]


def crossed_levels(cluster: Cluster, sent: Iterable[tuple[int, float]]) -> list[dict[str, Any]]:
    """`CrossedLevel` of every level. `sent`: level and bytes of everything that goes through one."""
    sums = [0.0] * len(cluster.levels)
    for level, size in sent:
        sums[level] += size
    return [
        {
            "name": level.name,
            "kind": level.kind,
            "devices": level.devices,
            "bytes_per_second": level.bytes_per_second,
            "latency_seconds": level.latency_seconds,
            "sent_bytes": size,
        }
        for level, size in zip(cluster.levels, sums, strict=True)
    ]


def collective_document(
    kind: str, algorithm: str | None, cluster: str, ranks: int, per_node: int, buffer_bytes: float
) -> dict[str, Any]:
    """`CollectiveDocument`. Raises `UserError`."""
    allowed = ALGORITHMS[kind]
    if algorithm not in (None, *allowed):
        raise UserError(
            f"algorithm = {algorithm!r}: allowed for {kind}: {', '.join(allowed)}; for example {allowed[0]}"
        )
    placed = PlacedRanks.of(cluster, ranks, per_node)
    chosen, chunk = algorithm or allowed[0], buffer_bytes / ranks
    priced = {each: PricedSteps(placed, collective_steps(kind, each, ranks, placed.block)) for each in allowed}
    first, steps = priced[chosen].rows(kind, chunk)
    return {
        "kind": kind,
        "algorithm": chosen,
        "cluster": placed.cluster.key,
        "ranks": ranks,
        "block": placed.block,
        "places": list(placed.places),
        "nodes": placed.nodes,
        "buffer_bytes": float(buffer_bytes),
        "chunk_bytes": chunk,
        "levels": crossed_levels(
            placed.cluster, ((each["level"], each["bytes"]) for step in steps for each in step["messages"])
        ),
        "first": first,
        "steps": steps,
        "phases": _phases(steps),
        "seconds": priced[chosen].seconds(chunk),
        "priced_seconds": placed.priced(kind, buffer_bytes),
        "algorithms": [each.total(name, buffer_bytes) for name, each in priced.items()],
        "sweep_bytes": list(SWEEP_BYTES),
        "sweep_priced_seconds": [placed.priced(kind, size) for size in SWEEP_BYTES],
    }
