"""Arrows of a trace between ranks: from a send to its receive, and through what pipeline ranks enter together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fourfold.layout import Layout
from fourfold.program import Program
from fourfold.program.instruction import Op
from fourfold.simulate.rank import Place

MOST_NAMED = 16
"""Ranks of a group that are named one by one."""


class TracePoint(NamedTuple):
    """A moment on a track of a trace: the event of the track that lasts then is meant. `time` in microseconds."""

    process: int
    track: int
    time: float


def transfers(programs: Sequence[Program]) -> Iterator[tuple[Place, Place]]:
    """The send and the receive of every transfer: between two ranks they pair up in the order of their starts."""
    sent: dict[tuple[int, int], list[Place]] = {}
    received: dict[tuple[int, int], list[Place]] = {}
    for rank, program in enumerate(programs):
        for index, step in enumerate(program.instructions):
            if step.peer is not None and step.op.is_send:
                sent.setdefault((rank, step.peer), []).append((rank, index))
            elif step.peer is not None and step.op.is_receive:
                received.setdefault((step.peer, rank), []).append((rank, index))
    for channel, places in sent.items():
        yield from zip(places, received.get(channel, ()), strict=False)


def meetings(programs: Sequence[Program]) -> Iterator[list[Place]]:
    """The instructions that several pipeline ranks enter together, as sums over all stages."""
    found: dict[object, list[Place]] = {}
    for rank, program in enumerate(programs):
        seen: dict[object, int] = {}
        for index, step in enumerate(program.instructions):
            axes = {axis for each in step.collectives for axis in each.axes.split("+")}
            if axes & {"pp", "tied"}:
                key = step.op, step.segment
                seen[key] = seen.get(key, 0) + 1
                found.setdefault((key, seen[key]), []).append((rank, index))
    return (places for places in found.values() if len(places) > 1)


def joins(program: Program) -> dict[int, int]:
    """Index of the WAIT that joins what an instruction started, by that instruction's index."""
    started: dict[str, int] = {}
    found = {}
    for index, step in enumerate(program.instructions):
        if step.op is Op.WAIT and step.handle in started:
            found[started.pop(step.handle)] = index
        elif step.op.is_start:
            started[step.short] = index
    return found


def arrows(
    paths: Iterable[Sequence[Place]], points: Mapping[Place, TracePoint], name: str, first: int = 0
) -> Iterator[dict[str, Any]]:
    """Flow events along each path, through the places that are drawn. `first`: their ids count from here."""
    for number, path in enumerate(paths, first):
        drawn = [points[place] for place in path if place in points]
        if len(drawn) < 2:
            continue
        for index, (process, track, time) in enumerate(drawn):
            last = index + 1 == len(drawn)
            event = {"name": name, "cat": "flow", "ph": "f" if last else "t" if index else "s", "id": number}
            yield {**event, "pid": process, "tid": track, "ts": time, **({"bp": "e"} if last else {})}


def members(layout: Layout, pp_rank: int, axes: str) -> str:
    """The ranks of a group, of the first device of a pipeline rank: `0, 8, 16 and 24`; those of large groups in part."""
    first = next(rank for rank in range(layout.world_size) if layout.pp_rank(rank) == pp_rank)
    ranks = layout.group_of(first, tuple(axes.split("+")))
    text = ", ".join(map(str, ranks[:MOST_NAMED]))
    return text if len(ranks) <= MOST_NAMED else f"{text}, ... {ranks[-1]}"
