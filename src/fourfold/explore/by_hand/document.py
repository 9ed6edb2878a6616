"""The document of a collective by hand: what every rank holds, the first fault, what it costs, and which goals it reaches."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fourfold.cost.algorithms import Contents
from fourfold.explore.by_hand.fills import known_fills
from fourfold.explore.by_hand.goals import HandFigures, HandGoalDocument, figures, goal_rows
from fourfold.explore.by_hand.judge import Judgement, judged, lack_text, ranks_of, reached_text
from fourfold.explore.by_hand.plan import SHARDED, HandPlan, step_text
from fourfold.explore.by_hand.price import HandPrice, placed_ranks
from fourfold.explore.by_hand.request import read_plan
from fourfold.explore.collective import CrossedLevel, crossed_levels
from fourfold.results.record import record

Held = list[list[int]]
"""For every chunk the ranks whose values are in it; empty: the rank has none of it."""


@record
class HandMessageDocument:
    """A chunk on its way. `how`: add or keep. `level`: the interconnect level between the ranks; `seconds`: of all that the sender
    sends the target in the step; None where it does not run."""

    how: str
    chunk: int
    source: int
    target: int
    level: int
    seconds: float | None


@record
class HandStep:
    """Messages that are sent at once. `text`: as a link has them. `holds`: every rank's chunks after it. `seconds`, `holds`: None
    where it does not run."""

    text: str
    messages: list[HandMessageDocument]
    seconds: float | None
    holds: list[Held] | None


@record
class HandLack:
    """A chunk that a rank should have; `ranks`: those whose values are not in it."""

    rank: int
    chunk: int
    ranks: list[int]


@record
class HandFaultPlace:
    """The message that cannot be: its step, from 0, and its place among the step's messages."""

    kind: str
    step: int
    index: int
    rank: int
    chunk: int


@record
class HandVerdict:
    """`message`: a sentence, of the first fault, of what is missing, or of what holds. `ran`: how many steps run."""

    state: Literal["reached", "unfinished", "fault"]
    message: str
    fault: HandFaultPlace | None
    missing: list[HandLack]
    ran: int


@record
class HandLink:
    """The bytes that one rank sends another over all steps that run."""

    source: int
    target: int
    level: int
    bytes: float


@record
class HandDocument:
    """A collective by hand, judged and priced on a cluster's links. `sharded`: whether `shards` may be chosen; `seats`: ranks that
    a node has room for; `fills`: algorithms that can write all steps; `first`: what every rank holds before the first."""

    kind: str
    ranks: int
    nodes: int
    seats: int
    node_of: list[int]
    shards: list[int]
    sharded: bool
    cluster: str
    buffer_bytes: float
    chunk_bytes: float
    link: str
    file: str
    fills: list[str]
    first: list[Held]
    steps: list[HandStep]
    verdict: HandVerdict
    figures: HandFigures
    levels: list[CrossedLevel]
    links: list[HandLink]
    goals: list[HandGoalDocument]


def hand_document(body: Mapping[str, Any]) -> dict[str, Any]:
    """`HandDocument` of a request (`HandRequest`). Raises `UserError` where its text is no plan."""
    asked = read_plan(body)
    plan, frame = asked.plan, asked.plan.frame
    found = judged(plan)
    price = HandPrice(placed_ranks(frame, asked.cluster), plan.steps[: found.ran], asked.buffer_bytes)
    links = [
        {"source": pair[0], "target": pair[1], "level": price.level(pair), "bytes": size}
        for pair, size in price.pair_bytes.items()
    ]
    return {
        "kind": frame.kind,
        "ranks": frame.ranks,
        "nodes": frame.nodes,
        "seats": frame.seats,
        "node_of": list(frame.node_of),
        "shards": list(frame.shards),
        "sharded": frame.kind in SHARDED,
        "cluster": asked.cluster,
        "buffer_bytes": asked.buffer_bytes,
        "chunk_bytes": price.chunk_bytes,
        "link": plan.link,
        "file": plan.text,
        "fills": list(known_fills(frame)),
        "first": _held(found.contents[0], frame.ranks),
        "steps": _steps(plan, found, price),
        "verdict": _verdict(plan, found, price),
        "figures": figures(price),
        "levels": crossed_levels(
            price.placed.cluster, ((price.level(pair), size) for pair, size in price.pair_bytes.items())
        ),
        "links": links,
        "goals": goal_rows(plan, asked.cluster, price, found.is_reached),
    }


def _held(contents: Sequence[Contents], ranks: int) -> list[Held]:
    return [[list(ranks_of(own.get(chunk, 0))) for chunk in range(ranks)] for own in contents]


def _steps(plan: HandPlan, found: Judgement, price: HandPrice) -> list[dict[str, Any]]:
    times, seconds = price.message_seconds, price.step_seconds
    return [
        {
            "text": step_text(step),
            "messages": [
                {
                    "how": each.how,
                    "chunk": each.chunk,
                    "source": each.source,
                    "target": each.target,
                    "level": price.level((each.source, each.target)),
                    "seconds": times[index][each.source, each.target] if index < found.ran else None,
                }
                for each in step
            ],
            "seconds": seconds[index] if index < found.ran else None,
            "holds": _held(found.contents[index + 1], plan.frame.ranks) if index < found.ran else None,
        }
        for index, step in enumerate(plan.steps)
    ]


def _verdict(plan: HandPlan, found: Judgement, price: HandPrice) -> dict[str, Any]:
    state: Literal["reached", "unfinished", "fault"]
    place = None
    if found.fault is not None:
        state, message = "fault", found.fault.sentence
        place = {
            "kind": found.fault.kind,
            "step": found.fault.step,
            "index": found.fault.index,
            "rank": found.fault.message.source,
            "chunk": found.fault.message.chunk,
        }
    elif found.lacks:
        state, message = "unfinished", lack_text(found.lacks)
    else:
        state, message = "reached", reached_text(plan.frame, price.num_steps)
    return {
        "state": state,
        "message": message,
        "fault": place,
        "missing": [{"rank": each.rank, "chunk": each.chunk, "ranks": list(each.lacks)} for each in found.lacks],
        "ran": found.ran,
    }
