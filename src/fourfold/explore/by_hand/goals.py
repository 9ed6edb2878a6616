"""Goals of a collective by hand: each within a bound that one of fourfold's algorithms sets, and answered by the engine."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from fourfold.explore.by_hand.fills import known_fills
from fourfold.explore.by_hand.plan import Frame, HandPlan, Kind, placed_in_order
from fourfold.explore.by_hand.price import HandPrice, placed_ranks
from fourfold.results.record import record

_ROUNDING = 1e-9
Measure = Literal["seconds", "network_bytes"]


@dataclass(frozen=True)
class HandGoal:
    """A collective on a cluster. `node_of`: where the ranks are at the start; they may be moved. It is reached where `measure`
    is at most that of the algorithm `against` at the start, or below it where `beats`."""

    id: str
    title: str
    text: str
    kind: Kind
    node_of: tuple[int, ...]
    against: str
    cluster: str = "dgx-h100"
    buffer_bytes: float = 1e9
    measure: Measure = "seconds"
    beats: bool = False

    @property
    def frame(self) -> Frame:
        """The ranks at the start."""
        ranks = len(self.node_of)
        return Frame(self.kind, max(self.node_of) + 1, self.node_of, tuple(range(ranks)))

    def price(self, frame: Frame, name: str) -> HandPrice:
        """The price of an algorithm on these ranks."""
        return HandPrice(placed_ranks(frame, self.cluster), known_fills(frame)[name](), self.buffer_bytes)

    def figure(self, price: HandPrice) -> float:
        """The figure that is measured."""
        return price.seconds if self.measure == "seconds" else price.network_bytes


GOALS = (
    HandGoal(
        "hand-all-gather", "All-gather", "Every rank has one chunk; let every rank have all, in no more time than the ring.",
        "all_gather", (0,) * 4, "ring",
    ),
    HandGoal(
        "hand-reduce-scatter", "Reduce-scatter", "Every rank has a buffer; let each end with its chunk of their sum, in no more "
        "time than the ring.", "reduce_scatter", (0,) * 4, "ring",
    ),
    HandGoal(
        "hand-all-reduce", "All-reduce", "Let every rank end with the whole sum, in no more time than the ring: a reduce-scatter, "
        "then an all-gather.", "all_reduce", (0,) * 4, "ring",
    ),
    HandGoal(
        "hand-broadcast", "Broadcast", "Rank 0 has a small buffer; let all have it, in no more time than the tree: who has it "
        "helps to send it.", "broadcast", (0,) * 8, "tree", buffer_bytes=64e3,
    ),
    HandGoal(
        "hand-places", "Place the ranks", "The ring leaves a node at every hop. Move ranks, or send otherwise, so that fewer bytes "
        "pass between the nodes.", "all_gather", (0, 1, 0, 1), "ring", measure="network_bytes", beats=True,
    ),
    HandGoal(
        "hand-hierarchical", "Beat the ring: a slow network", "Links inside a node are many times as fast as those between nodes: "
        "sum inside first.", "all_reduce", (0, 0, 1, 1), "ring", cluster="aws-p4d", beats=True,
    ),
    HandGoal(
        "hand-doubling", "Beat the ring: a small buffer", "A step costs its latency here, hardly its bytes: send more, in fewer "
        "steps.", "all_reduce", (0,) * 4, "ring", buffer_bytes=8e3, beats=True,
    ),
)  # fmt: skip


@record
class HandFigures:
    """The cost of steps. `network_bytes`: leave a node, all ranks together; `sent_bytes`: of the rank that sends most."""

    num_steps: int
    seconds: float
    sent_bytes: float
    network_bytes: float


@record
class HandKnown:
    """An algorithm of fourfold, named as a fill, and its figures. `node_of`: where the ranks are."""

    fill: str
    node_of: list[int]
    figures: HandFigures


@record
class HandGoalDocument:
    """A goal, and how far the plan is. `against`: what it is measured by; `best`: the algorithm with least of `measure`, ranks
    moved node by node where that helps. `yours`: None where the plan is another collective, or lacks something. `is_best`: whether
    yours is as good as the best known."""

    id: str
    title: str
    text: str
    kind: str
    ranks: int
    nodes: int
    node_of: list[int]
    cluster: str
    buffer_bytes: float
    measure: str
    beats: bool
    against: HandKnown
    best: HandKnown
    fits: bool
    yours: HandFigures | None
    is_best: bool
    reached: bool


def figures(price: HandPrice) -> dict[str, Any]:
    """`HandFigures`."""
    return {
        "num_steps": price.num_steps,
        "seconds": price.seconds,
        "sent_bytes": price.sent_bytes,
        "network_bytes": price.network_bytes,
    }


@lru_cache(maxsize=len(GOALS))
def best_known(goal: HandGoal) -> tuple[Frame, str]:
    """The algorithm with least of what is measured, then of time, and where its ranks are."""
    ranks = len(goal.node_of)
    in_order = replace(goal.frame, node_of=placed_in_order(ranks, goal.frame.nodes))
    ways = [(frame, name) for frame in dict.fromkeys((goal.frame, in_order)) for name in known_fills(frame)]

    def cost(way: tuple[Frame, str]) -> tuple[float, float]:
        price = goal.price(*way)
        return goal.figure(price), price.seconds

    return min(ways, key=cost)


def goal_rows(plan: HandPlan, cluster: str, price: HandPrice, is_reached: bool) -> list[dict[str, Any]]:
    """`HandGoalDocument` of every goal."""
    return [_row(goal, plan, cluster, price, is_reached) for goal in GOALS]


@lru_cache(maxsize=len(GOALS))
def _known(goal: HandGoal) -> tuple[HandPrice, HandPrice]:
    """Prices of what a goal is measured by, and of the best known."""
    return goal.price(goal.frame, goal.against), goal.price(*best_known(goal))


def _row(goal: HandGoal, plan: HandPlan, cluster: str, price: HandPrice, is_reached: bool) -> dict[str, Any]:
    frame, name = best_known(goal)
    against, best = _known(goal)
    own = (plan.frame.kind, plan.frame.ranks, plan.frame.nodes, cluster, price.buffer_bytes)
    fits = own == (goal.kind, goal.frame.ranks, goal.frame.nodes, goal.cluster, goal.buffer_bytes)
    counts = fits and is_reached
    mine, bound = goal.figure(price), goal.figure(against)
    within = mine < bound * (1 - _ROUNDING) if goal.beats else mine <= bound * (1 + _ROUNDING)
    return {
        "id": goal.id,
        "title": goal.title,
        "text": goal.text,
        "kind": goal.kind,
        "ranks": goal.frame.ranks,
        "nodes": goal.frame.nodes,
        "node_of": list(goal.node_of),
        "cluster": goal.cluster,
        "buffer_bytes": goal.buffer_bytes,
        "measure": goal.measure,
        "beats": goal.beats,
        "against": {"fill": goal.against, "node_of": list(goal.node_of), "figures": figures(against)},
        "best": {"fill": name, "node_of": list(frame.node_of), "figures": figures(best)},
        "fits": fits,
        "yours": figures(price) if counts else None,
        "is_best": counts and mine <= goal.figure(best) * (1 + _ROUNDING),
        "reached": counts and within,
    }
