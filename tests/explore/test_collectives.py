"""The collective's document keeps what the collective promises, and the page shows it."""

import json
import random
from typing import Any

import pytest

from fourfold.config import UserError
from fourfold.cost.algorithms import ALGORITHMS
from fourfold.explore.collective import collective_document
from fourfold.explore.documents import encoded
from fourfold.explore.setup import Malformed
from fourfold.model.work import sent_bytes
from tests.support.explore_server import Watched, in_address

WAYS = [(kind, algorithm) for kind, algorithms in ALGORITHMS.items() for algorithm in algorithms]


def document(kind: str, algorithm: str, ranks: int, per_node: int = 4, size: float = 1e9) -> dict[str, Any]:
    return json.loads(json.dumps(collective_document(kind, algorithm, "dgx-h100", ranks, per_node, size)))


def replayed(steps: list[dict[str, Any]], buffers: list[dict[int, int]]) -> list[dict[int, int]]:
    """Numbers by chunk on every rank, after each rank did what the steps say. All of a step is sent before any arrives."""
    for step in steps:
        letters = [
            (each, chunk, buffers[each["source"]][chunk]) for each in step["messages"] for chunk in each["chunks"]
        ]
        for each, chunk, _ in letters:
            if each["how"] != "copy":
                del buffers[each["source"]][chunk]
        for each, chunk, number in letters:
            target = buffers[each["target"]]
            target[chunk] = number + (target.get(chunk, 0) if each["how"] == "add" else 0)
    return buffers


@pytest.mark.parametrize(("kind", "algorithm"), WAYS)
def test_the_steps_do_what_the_collective_promises(kind: str, algorithm: str) -> None:
    draw = random.Random(7)
    for ranks in (2, 3, 4, 7, 8, 12, 16):
        for per_node in (1, 3, 8):
            steps = document(kind, algorithm, ranks, per_node)["steps"]
            everyone = range(ranks)
            numbers = [[draw.randrange(1, 10**9) for _ in everyone] for _ in everyone]
            sums = [sum(row[chunk] for row in numbers) for chunk in everyone]
            if kind == "all_gather":
                found = replayed(steps, [{rank: numbers[rank][0]} for rank in everyone])
                assert found == [{rank: numbers[rank][0] for rank in everyone}] * ranks
            elif kind == "all_to_all":
                chunks = [{rank * ranks + to: numbers[rank][to] for to in everyone} for rank in everyone]
                wanted = [{rank * ranks + to: numbers[rank][to] for rank in everyone} for to in everyone]
                assert replayed(steps, chunks) == wanted
            else:
                found = replayed(steps, [dict(enumerate(row)) for row in numbers])
                both = kind == "all_reduce"
                assert found == [dict(enumerate(sums)) if both else {rank: sums[rank]} for rank in everyone]


@pytest.mark.parametrize(("kind", "algorithm"), WAYS)
def test_a_rank_sends_and_is_sent_one_message_a_step(kind: str, algorithm: str) -> None:
    for ranks in (2, 7, 12, 16):
        found = document(kind, algorithm, ranks)
        for step in found["steps"]:
            for end in ("source", "target"):
                ends = [each[end] for each in step["messages"]]
                assert len(ends) == len({*ends})
            assert step["seconds"] == max(each["seconds"] for each in step["messages"])
        assert found["seconds"] == pytest.approx(sum(step["seconds"] for step in found["steps"]))
        assert found["seconds"] == pytest.approx(sum(phase["seconds"] for phase in found["phases"]))
        crossed = sum(each["bytes"] for step in found["steps"] for each in step["messages"])
        assert crossed == pytest.approx(sum(level["sent_bytes"] for level in found["levels"]))


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather"])
def test_a_ring_sends_the_bytes_that_a_program_counts(kind: str) -> None:
    for ranks in (2, 5, 16):
        [ring, *_] = document(kind, "ring", ranks, size=ranks * 10**6)["algorithms"]
        assert ring["sent_bytes"] == sent_bytes(kind, ranks * 10**6, ranks)


def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    both = document("all_reduce", "ring", 8)
    parts = [document(kind, "ring", 8) for kind in ("reduce_scatter", "all_gather")]
    messages = [step["messages"] for each in parts for step in each["steps"]]
    assert [step["messages"] for step in both["steps"]] == messages
    assert [phase["phase"] for phase in both["phases"]] == ["reduce-scatter", "all-gather"]
    assert both["seconds"] == pytest.approx(sum(each["seconds"] for each in parts))


def test_cells_say_what_the_messages_do() -> None:
    found = document("all_to_all", "hierarchical", 8)
    assert all(
        sorted(cell[0] for cell in row) == [*range(rank * 8, rank * 8 + 8)] for rank, row in enumerate(found["first"])
    )
    assert all(
        sorted(cell[0] % 8 for cell in row) == [rank] * 8 for rank, row in enumerate(found["steps"][-1]["cells"])
    )
    found = document("all_reduce", "ring", 8)
    after = found["steps"][found["phases"][1]["first"] - 1]["cells"]
    assert [[index for index, cell in enumerate(row) if cell] for row in after] == [[rank] for rank in range(8)]


@pytest.mark.parametrize(("changes", "error"), [
    ({"ranks": 17}, Malformed), ({"ranks": 1}, Malformed), ({"kind": "gossip"}, Malformed), ({"buffer_bytes": 0.0}, Malformed),
    ({"cluster": "./mine.toml"}, Malformed), ({"cluster": None}, Malformed), ({"per_node": True}, Malformed),
    ({"algorithm": "pairwise"}, UserError), ({"cluster": "dgx-h10"}, UserError),
])  # fmt: skip
def test_other_requests_are_refused(changes: dict[str, Any], error: type[UserError]) -> None:
    body = {"kind": "all_reduce", "ranks": 8, "per_node": 4, "buffer_bytes": 1e9, "cluster": "dgx-h100"}
    with pytest.raises(error):
        encoded("collective", body | changes, lambda text, share: None)


def test_the_page_steps_through_a_collective(watched: Watched) -> None:
    watched.open("#/collectives?collectives.ranks=4&collectives.per_node=2&collectives.step=0")
    tab = watched.tab
    tab.wait_for_selector("figure svg .rank")
    expected = document("all_reduce", "ring", 4, 2)
    assert tab.locator(".strip button").count() == len(expected["steps"]) == 6
    rail = tab.locator(".track").bounding_box()
    assert sum(each.bounding_box()["width"] for each in tab.locator(".strip button").all()) > 0.9 * rail["width"]
    assert tab.locator(".arrival").count() == 0
    tab.get_by_role("button", name="Step", exact=True).click()
    assert tab.locator(".arrival").count() == 4
    tab.get_by_label("Steps taken").focus()
    tab.keyboard.press("End")
    done = "[...document.querySelectorAll('.value.done')].map(each => Number(each.dataset.cells))"
    assert sum(tab.evaluate(done)) == 16
    tab.wait_for_url("**collectives.step=6*")
    tab.get_by_label("Collective", exact=True).select_option("all_to_all")
    tab.wait_for_selector(".name:has-text('pairwise')")
    tab.get_by_label("Algorithm", exact=True).select_option("hierarchical")
    tab.wait_for_selector("button[aria-pressed=true] .name:has-text('hierarchical')")
    tab.keyboard.press("Control+z")
    tab.wait_for_selector("button[aria-pressed=true] .name:has-text('pairwise')")


def test_a_collective_of_the_set_up_s_step_is_opened(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/collectives?run=preset:llama3-405b-16k")
    figure = tab.locator("figure[data-name=step-collectives]")
    row = figure.get_by_role("button", name="all-gather of tp: 268 MB over 8 ranks in a node")
    row.click()
    tab.wait_for_selector("p.said:has-text('the step\\'s all-gather of tp')")
    in_address(tab, "collectives.bytes=268435456")
    assert tab.locator("rect.node").count() == 1
    assert tab.locator("figure[data-name=collective] .rank").count() == 8
    figure.get_by_role("button", name="all-gather of dp_shard").click()
    tab.wait_for_selector("p.said:has-text('16 of its ranks are drawn')")
    assert tab.locator("rect.node").count() == 16


def test_a_collective_is_played_to_its_end(watched: Watched) -> None:
    watched.open("#/collectives?collectives.ranks=3&collectives.per_node=3&collectives.step=0")
    watched.tab.wait_for_selector("figure svg .rank")
    watched.tab.get_by_role("button", name="Play", exact=True).click()
    watched.tab.wait_for_selector(".strip button:nth-child(4).now")
    watched.tab.get_by_role("button", name="Play", exact=True).wait_for()
    in_address(watched.tab, "collectives.step=4")


def test_the_page_shows_where_the_states_live(watched: Watched) -> None:
    watched.open("#/parallelism?parallelism.moment=50&parallelism.part=zero")
    for name in ("ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3", "HSDP"):
        watched.tab.wait_for_selector(f"figure:has(h2:has-text('{name}')) svg path")
    before = watched.tab.locator("svg[aria-label^=ZeRO-3]").get_attribute("aria-label")
    watched.tab.get_by_label("Moment of the step").fill("0")
    watched.tab.wait_for_function(
        "said => document.querySelector('svg[aria-label^=\"ZeRO-3\"]').ariaLabel !== said", arg=before
    )
