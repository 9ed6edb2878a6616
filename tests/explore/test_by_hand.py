"""A collective by hand: every fault is found, what is said to be reached is true of numbers, and prices are those of fourfold's own
collectives."""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest

from fourfold.config import UserError
from fourfold.cost.algorithms import collective_steps
from fourfold.explore.by_hand.fills import fill_steps, known_fills
from fourfold.explore.by_hand.goals import GOALS
from fourfold.explore.by_hand.judge import FaultKind, judged, wanted_contents
from fourfold.explore.by_hand.plan import (
    KINDS,
    RANKS,
    SHARDED,
    Frame,
    HandMessage,
    HandPlan,
    placed_in_order,
    plan_of_file,
    read_steps,
)
from fourfold.explore.by_hand.price import placed_ranks
from fourfold.explore.collective import collective_document
from fourfold.explore.documents import encoded
from fourfold.explore.setup import Malformed
from tests.explore.test_documents import silent

ALL_RANKS = range(RANKS[0], RANKS[1] + 1)


def answer(**body: Any) -> Any:
    """The document of a request."""
    return json.loads(encoded("by_hand", body, silent))


def frames() -> Iterator[Frame]:
    """Collectives of every kind over all numbers of ranks, on one node and on several, placed and sharded in and out of order."""
    draw = random.Random(5)
    for kind in KINDS:
        for ranks in ALL_RANKS:
            for nodes in {1, 2, ranks}:
                placed, shards = [*placed_in_order(ranks, nodes)], [*range(ranks)]
                yield Frame(kind, nodes, tuple(placed), tuple(shards))
                draw.shuffle(placed)
                if kind in SHARDED:
                    draw.shuffle(shards)
                yield Frame(kind, nodes, tuple(placed), tuple(shards))


class Numbers:
    """Ranks with a number for each chunk, on which messages act: it knows nothing of which ranks are summed."""

    def __init__(self, frame: Frame, seed: int) -> None:
        draw = random.Random(seed)
        everyone = range(frame.ranks)
        own = [[draw.randrange(1, 1 << 60) for _ in everyone] for _ in everyone]
        sums = [sum(row[chunk] for row in own) for chunk in everyone]
        self.held: list[dict[int, int]]
        self.wanted: list[dict[int, int]]
        if frame.kind == "all_gather":
            self.held = [{chunk: own[rank][chunk]} for rank, chunk in enumerate(frame.shards)]
            self.wanted = [{chunk: own[rank][chunk] for rank, chunk in enumerate(frame.shards)}] * frame.ranks
        elif frame.kind == "broadcast":
            self.held = [dict(enumerate(own[0])), *({} for _ in everyone[1:])]
            self.wanted = [dict(enumerate(own[0]))] * frame.ranks
        else:
            self.held = [dict(enumerate(row)) for row in own]
            full = dict(enumerate(sums))
            self.wanted = [
                full if frame.kind == "all_reduce" else {frame.shards[rank]: sums[frame.shards[rank]]}
                for rank in everyone
            ]

    def take(self, step: Sequence[HandMessage]) -> bool:
        """Sends all of a step, then lets it arrive; false where a rank has not what it sends, or two things arrive in one place."""
        try:
            letters = [(each, self.held[each.source][each.chunk]) for each in step]
        except KeyError:
            return False
        if len({(each.target, each.chunk) for each in step}) < len(step):
            return False
        for each, number in letters:
            mine = self.held[each.target]
            mine[each.chunk] = number + (mine[each.chunk] if each.how == "add" and each.chunk in mine else 0)
        return True

    @property
    def is_reached(self) -> bool:
        return all(wanted.items() <= own.items() for own, wanted in zip(self.held, self.wanted, strict=True))


def true_of_numbers(plan: HandPlan) -> bool:
    """Whether all steps can be taken, and numbers are then what the collective promises."""
    return all(
        all(numbers.take(step) for step in plan.steps) and numbers.is_reached
        for numbers in (Numbers(plan.frame, seed) for seed in (1, 2))
    )


def test_every_fill_reaches_its_collective_and_numbers_agree() -> None:
    for frame in frames():
        for name in known_fills(frame):
            plan = HandPlan(frame, fill_steps(name, frame))
            found = judged(plan)
            assert found.is_reached, (frame, name, found)
            assert true_of_numbers(plan), (frame, name)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("ranks", ALL_RANKS)
def test_the_ring_by_hand_has_the_steps_and_the_price_of_fourfold_s_own(kind: Any, ranks: int) -> None:
    """2(N-1) steps for an all-reduce; as hierarchical rings, trees and all through rank 0 do."""
    for nodes in (1, 2):
        body = {"kind": kind, "ranks": ranks, "nodes": nodes, "buffer_bytes": 3e8}
        own = collective_document(kind, "ring", "dgx-h100", ranks, -(-ranks // nodes), 3e8)
        found = answer(**body, fill="ring")
        steps = [[(m["source"], m["chunk"], m["target"]) for m in step["messages"]] for step in found["steps"]]
        expected = [
            [(m.source, chunk, m.target) for m in step.messages for chunk in m.chunks]
            for step in collective_steps(kind, "ring", ranks, ranks)
        ]
        assert steps == expected
        assert len(steps) == (ranks - 1) * (2 if kind == "all_reduce" else 1)
        assert [step["seconds"] for step in found["steps"]] == [step["seconds"] for step in own["steps"]]
        for algorithm in own["algorithms"]:
            if algorithm["algorithm"] in found["fills"]:
                mine = answer(**body, fill=algorithm["algorithm"])["figures"]
                for key in ("num_steps", "seconds", "sent_bytes", "network_bytes"):
                    assert mine[key] == pytest.approx(algorithm[key]), (algorithm["algorithm"], key)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_doubling_takes_a_logarithm_of_steps(ranks: int) -> None:
    """An all-reduce of full buffers sends log2(N) of them; by halves it sends the ring's bytes, as Thakur et al. say."""
    steps = ranks.bit_length() - 1
    body = {"kind": "all_reduce", "ranks": ranks, "buffer_bytes": 8192.0}
    full, halves, ring = (answer(**body, fill=name)["figures"] for name in ("doubling", "halving_doubling", "ring"))
    assert (full["num_steps"], full["sent_bytes"]) == (steps, steps * 8192)
    assert (halves["num_steps"], halves["sent_bytes"]) == (2 * steps, ring["sent_bytes"])


def changed(plan: HandPlan, draw: random.Random) -> HandPlan:
    """A plan in which a message is dropped, turned, given another chunk, end or way, doubled, or moved to another step."""
    steps = [list(step) for step in plan.steps]
    step = draw.choice([each for each in steps if each])
    index = draw.randrange(len(step))
    each, ranks = step[index], plan.frame.ranks
    match draw.randrange(7):
        case 0:
            del step[index]
        case 1:
            step[index] = HandMessage(each.how, each.chunk, each.target, each.source)
        case 2:
            step[index] = HandMessage(each.how, draw.randrange(ranks), each.source, each.target)
        case 3:
            step[index] = HandMessage(each.how, each.chunk, each.source, draw.randrange(ranks))
        case 4:
            step[index] = HandMessage("keep" if each.how == "add" else "add", each.chunk, each.source, each.target)
        case 5:
            step.insert(index, each)
        case 6:
            draw.choice(steps).append(step.pop(index))
    return HandPlan(plan.frame, tuple(map(tuple, steps)))


def test_a_changed_plan_is_reached_only_where_it_is_true_of_numbers() -> None:
    """Changes of right plans, one to three of them. One that is true of numbers and yet refused breaks a rule that numbers do
    not have: one message a port, no message to oneself, nothing added to nothing; or a wrong sum that is written over later."""
    draw = random.Random(11)
    kinds, reached = set[str](), 0
    plans = [
        HandPlan(frame, fill_steps(name, frame)) for frame in frames() if frame.ranks < 7 for name in known_fills(frame)
    ]
    for plan in plans:
        for changes in (1, 1, 2, 3):
            other = plan
            for _ in range(changes):
                other = changed(other, draw)
            found, is_true = judged(other), true_of_numbers(other)
            if found.is_reached:
                assert is_true, other
                reached += 1
            elif is_true:
                assert found.fault is not None, other
                assert found.fault.kind in ("ports", "self", "nothing", "twice"), (other, found.fault)
            if found.fault is not None:
                kinds.add(found.fault.kind)
                sentence, message = found.fault.sentence, found.fault.message
                assert f"step {found.fault.step + 1}" in sentence
                assert f"rank {message.source}" in sentence
                assert f"chunk {message.chunk}" in sentence
    assert kinds == set(get_args(FaultKind))
    assert reached > 20


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_a_ring_needs_each_of_its_messages(kind: Any) -> None:
    """One taken away: somebody sends what it has not, or a chunk is missing; what is missing is named."""
    frame = Frame(kind, 1, (0,) * 4, (0, 1, 2, 3))
    steps = fill_steps("ring", frame)
    for number, step in enumerate(steps):
        for index in range(len(step)):
            cut = HandPlan(frame, (*steps[:number], step[:index] + step[index + 1 :], *steps[number + 1 :]))
            found = judged(cut)
            assert not found.is_reached
            assert not true_of_numbers(cut)
            wanted = wanted_contents(frame)
            lacking = {
                (rank, chunk)
                for rank, own in enumerate(found.contents[-1])
                for chunk, bits in wanted[rank].items()
                if own.get(chunk) != bits
            }
            assert {(each.rank, each.chunk) for each in found.lacks} == lacking != set()


@pytest.mark.parametrize(
    ("body", "state", "message"),
    [
        ({"steps": "K1.0-1"}, "fault", "step 1: rank 0 sends chunk 1, which it does not hold before this step"),
        ({"steps": "K0.0-1 K0.1-2"}, "fault", "step 1: rank 1 sends chunk 0, which it does not hold before this step"),
        ({"steps": ":K0.0-0"}, "fault", "step 2: rank 0 sends chunk 0 to itself"),
        ({"steps": "K0.0-1:K0.0-2 K0.1-2"}, "fault", "step 2: chunk 0 of rank 2 is written by rank 0 and by rank 1"),
        ({"steps": "K0.0-1 K0.0-1"}, "fault", "step 1: chunk 0 of rank 1 is written twice by rank 0"),
        ({"steps": "K0.0-1 K0.0-2"}, "fault", "step 1: rank 0 sends chunk 0 to rank 2 while it sends to rank 1"),
        ({"steps": "K0.0-1 K2.2-1"}, "fault", "step 1: rank 1 gets chunk 2 of rank 2 while rank 0 sends to it"),
        ({"steps": "A0.0-1"}, "fault", "step 1: rank 1 adds chunk 0 of rank 0 to nothing"),
        ({"kind": "all_reduce", "steps": "A0.0-1:A0.1-0"}, "fault",
         "step 2: rank 0 adds chunk 0 of rank 1, and the sum counts rank 0 twice"),
        ({"kind": "all_reduce", "steps": "A0.0-1:A0.1-2:K0.2-1:A0.2-1"}, "fault", "the sum counts ranks 0, 1 and 2 twice"),
        ({"steps": "K0.0-1 K1.1-0"}, "unfinished", "rank 0 lacks chunk 2; 3 more chunks are missing"),
        ({"kind": "reduce_scatter", "ranks": 2, "steps": "A0.1-0"}, "unfinished",
         "in chunk 1 of rank 1 rank 0 is not summed yet"),
        ({"kind": "all_reduce", "ranks": 2, "steps": "A0,1.0-1 A0,1.1-0"}, "reached",
         "after 1 step every rank holds all 2 chunks, summed over all 2 ranks, each counted once"),
    ],
)  # fmt: skip
def test_a_sentence_names_step_rank_and_chunk(body: dict[str, Any], state: str, message: str) -> None:
    found = answer(**{"ranks": 3, **body})["verdict"]
    assert found["state"] == state
    assert message in found["message"]


def test_steps_after_a_fault_neither_run_nor_cost() -> None:
    found = answer(ranks=3, steps="K0.0-1:K2.0-1:K1.1-2")
    assert found["verdict"]["ran"] == 1
    assert found["verdict"]["fault"] == {"kind": "lacks", "step": 1, "index": 0, "rank": 0, "chunk": 2}
    assert [step["seconds"] is None for step in found["steps"]] == [False, True, True]
    assert found["figures"]["seconds"] == found["steps"][0]["seconds"]
    assert found["links"] == [{"source": 0, "target": 1, "level": 0, "bytes": found["chunk_bytes"]}]


def test_what_two_ranks_send_each_other_in_a_step_is_one_message_a_way() -> None:
    """Two chunks cost one latency and the bytes of both; added and kept ones, too."""
    body = {"kind": "all_reduce", "ranks": 4}
    both = answer(**body, steps="A0.0-1 K1.0-1")["figures"]["seconds"]
    assert both == answer(**body, steps="A0,1.0-1")["figures"]["seconds"]
    one = answer(**body, steps="A0.0-1")["figures"]["seconds"]
    assert one < both < 2 * one


def test_places_decide_what_leaves_a_node() -> None:
    """A ring over ranks that alternate between two nodes sends every chunk through the network; in order, two hops of a step."""
    body = {"kind": "all_gather", "ranks": 4, "nodes": 2, "fill": "ring"}
    bad, good = (answer(**body, node_of=places) for places in ([0, 1, 0, 1], [0, 0, 1, 1]))
    chunk = bad["chunk_bytes"]
    assert (bad["figures"]["network_bytes"], good["figures"]["network_bytes"]) == (12 * chunk, 6 * chunk)
    assert answer(**body | {"fill": "ring_by_node"}, node_of=[0, 1, 0, 1])["figures"] == good["figures"]
    for found in (bad, good):
        crossed = sum(level["sent_bytes"] for level in found["levels"][1:])
        assert crossed == found["figures"]["network_bytes"]
        assert sum(each["bytes"] for each in found["links"]) == sum(each["sent_bytes"] for each in found["levels"])


def test_links_and_files_open_as_the_same_plan() -> None:
    for frame in frames():
        for name in known_fills(frame):
            plan = HandPlan(frame, fill_steps(name, frame))
            again = HandPlan(frame, read_steps(plan.link, frame.ranks))
            assert again.link == plan.link
            assert judged(again).contents == judged(plan).contents
            opened = plan_of_file(plan.text)
            assert opened.frame == frame
            assert opened.link == plan.link
    found = answer(
        kind="reduce_scatter", ranks=4, nodes=2, node_of=[1, 0, 1, 0], shards=[2, 0, 3, 1], fill="hierarchical"
    )
    opened = answer(file=found["file"])
    for key in ("kind", "ranks", "nodes", "node_of", "shards", "link", "verdict", "steps"):
        assert opened[key] == found[key]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"steps": "K0.0-1 X"}, "steps: step 1: 'X' is no message; what works: A3.0-1"),
        ({"steps": ":K4.0-1"}, "steps: step 2: K4.0-1: there is no chunk 4; allowed: 0 to 3"),
        ({"steps": "K0.0-9"}, "there is no rank 9; allowed: 0 to 3"),
        ({"steps": ":" * 64}, "steps: 65 steps; allowed: 64 at most"),
        ({"nodes": 5}, "4 ranks on 5 nodes: allowed: 2 to 8 ranks"),
        ({"nodes": 2, "node_of": [0, 0, 0, 1]}, "node 0 has 3 ranks; allowed: 2 at most; what works: 0 0 1 1"),
        ({"nodes": 2, "node_of": [0, 0, 1, 2]}, "rank 3 is on node 2; allowed: 0 to 1; what works: 0 0 1 1"),
        ({"shards": [0, 1, 1, 2]}, "shards 0 1 1 2: allowed: each chunk of 0 to 3 once; what works: 0 1 2 3"),
        (
            {"fill": "hierarchical"},
            "writes no all_gather over 4 ranks on 1 nodes; allowed: ring, tree, naive, doubling",
        ),
        ({"cluster": "dgx-h10"}, "dgx-h10"),
        ({"file": "kind all_reduce"}, "file: node_of is missing; what works: a line 'node_of 0 0 1 1'"),
        ({"file": "kind gossip\nnode_of 0 0"}, "kind 'gossip': allowed: all_gather"),
        ({"file": "kind all_gather\nnode_of 0 0\nstep K0.0-1 ?"}, "file:3: '?' is no message"),
        ({"file": "hello"}, "file:1: 'hello'; allowed: kind, nodes, node_of, shards once, and step"),
        ({"file": "kind all_gather\nnode_of 0 x"}, "file: node_of '0 x': allowed: numbers"),
        ({"file": "kind all_gather\nnode_of 0"}, "1 ranks on 1 nodes: allowed: 2 to 8 ranks"),
    ],
)
def test_a_text_that_is_no_plan_is_refused_with_what_works(body: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        answer(**body)
    assert words in str(caught.value)
    assert not isinstance(caught.value, Malformed)


def test_ranks_that_have_no_device_in_a_node_are_refused() -> None:
    with pytest.raises(
        UserError, match="16 ranks on 1 nodes are 16 in a node, which has 8 devices; what works: nodes = 2"
    ):
        placed_ranks(Frame("all_gather", 1, (0,) * 16, tuple(range(16))), "dgx-h100")


@pytest.mark.parametrize(
    "body",
    [{"ranks": 9}, {"steps": 3}, {"kind": "gossip"}, {"cluster": "./mine.toml"}, {"buffer_bytes": 0.0}, {"file": "a" * 30_000}],
)  # fmt: skip
def test_a_request_that_the_page_never_makes_is_malformed(body: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        answer(**body)


# Goals


def goal_body(goal: Any, **changes: Any) -> dict[str, Any]:
    """The request of a goal's start."""
    return {"kind": goal.kind, "ranks": len(goal.node_of), "nodes": goal.frame.nodes, "node_of": list(goal.node_of),
            "cluster": goal.cluster, "buffer_bytes": goal.buffer_bytes, **changes}  # fmt: skip


def row_of(found: Any, name: str) -> Any:
    """A goal of the document."""
    return next(goal for goal in found["goals"] if goal["id"] == name)


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.id)
def test_a_goal_s_figures_are_those_of_its_fills_and_its_best_reaches_it(goal: Any) -> None:
    start = answer(**goal_body(goal, fill=goal.against))
    row = row_of(start, goal.id)
    assert row["against"]["figures"] == start["figures"] == row["yours"]
    assert row["reached"] != goal.beats
    best = answer(**goal_body(goal, fill=row["best"]["fill"], node_of=row["best"]["node_of"]))
    won = row_of(best, goal.id)
    assert won["reached"]
    assert won["is_best"]
    assert won["yours"] == row["best"]["figures"]
    assert row["best"]["figures"][goal.measure] <= row["against"]["figures"][goal.measure]
    known = [answer(**goal_body(goal, fill=name))["figures"][goal.measure] for name in start["fills"]]
    assert row["best"]["figures"][goal.measure] <= min(known)
    cut = answer(**goal_body(goal, steps=best["link"].rpartition(" ")[0], node_of=row["best"]["node_of"]))
    assert (row_of(cut, goal.id)["yours"], row_of(cut, goal.id)["reached"]) == (None, False)
    assert not any(row_of(answer(**goal_body(goal, buffer_bytes=77.0)), goal.id)[key] for key in ("fits", "reached"))


# In a browser
