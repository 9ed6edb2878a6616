"""Requests of a collective by hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fourfold.explore.by_hand.fills import fill_steps
from fourfold.explore.by_hand.plan import RANKS, HandPlan, Kind, placed_in_order, plan_of_file, read_frame, read_steps
from fourfold.explore.setup import read_setup, validated

_MOST_TEXT = 20_000
_Small = Annotated[int, Field(ge=0, lt=RANKS[1])]
_PerRank = Annotated[list[_Small], Field(max_length=RANKS[1])]


class HandRequest(BaseModel):
    """`steps`: messages as a link has them. In place of them: `file`, the text of a file, which states all but cluster and buffer;
    or `fill`, the name of an algorithm that writes all steps. `node_of`: the node of every rank, in order where left out; `shards`:
    the chunk of every rank, its own number where left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    kind: Kind = "all_gather"
    ranks: Annotated[int, Field(ge=RANKS[0], le=RANKS[1])] = 4
    nodes: Annotated[int, Field(ge=1, le=RANKS[1])] = 1
    node_of: _PerRank | None = None
    shards: _PerRank | None = None
    steps: Annotated[str, Field(max_length=_MOST_TEXT)] = ""
    file: Annotated[str, Field(max_length=_MOST_TEXT)] | None = None
    fill: Annotated[str, Field(max_length=40)] | None = None
    cluster: Annotated[str, Field(max_length=200)] = "dgx-h100"
    buffer_bytes: Annotated[float, Field(ge=1, le=1e15)] = 1e9


@dataclass(frozen=True)
class PricedPlan:
    """A plan, the cluster whose links carry it, and its buffer."""

    plan: HandPlan
    cluster: str
    buffer_bytes: float


def read_plan(body: Mapping[str, Any]) -> PricedPlan:
    """Raises `Malformed` for a request that the page never makes, `UserError` for a text that is no plan."""
    works = '{"kind": "all_gather", "ranks": 2, "steps": "K0.0-1 K1.1-0"}'
    asked = validated(HandRequest, body, f"what works: {works}")
    read_setup({"cluster": asked.cluster})
    if asked.file is not None:
        plan = plan_of_file(asked.file)
    else:
        node_of = asked.node_of if asked.node_of is not None else placed_in_order(asked.ranks, asked.nodes)
        shards = asked.shards if asked.shards is not None else range(asked.ranks)
        frame = read_frame(asked.kind, asked.nodes, node_of, shards)
        steps = fill_steps(asked.fill, frame) if asked.fill is not None else read_steps(asked.steps, frame.ranks)
        plan = HandPlan(frame, steps)
    return PricedPlan(plan, asked.cluster, asked.buffer_bytes)
