"""Pieces of a block on its ranks cover it, and are those of the layout, the recorder and the ring."""

import json
from itertools import pairwise
from typing import Any

import pytest

from fourfold.config import UserError
from fourfold.explore.documents import encoded
from fourfold.explore.setup import Malformed
from fourfold.model.work import sent_bytes
from tests.explore.test_documents import SMALL, silent
from tests.support.explore_server import Watched, in_address

DENSE = SMALL | {"model.preset": "llama3.2-1b", "batch.sequence_length": 2048}
MOE = SMALL | {"model.preset": "mixtral-8x7b", "batch.sequence_length": 2048}


def document(overrides: dict[str, Any] = DENSE, **own: Any) -> Any:
    return json.loads(encoded("block", {"overrides": overrides, "cluster": "dgx-h100:8", **own}, silent))


def area(box: list[int]) -> int:
    return (box[1] - box[0]) * (box[3] - box[2])


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (1, 4), (2, 4)])
def test_pieces_are_as_large_as_the_recorder_says_and_cover_the_activation(
    tp: int, cp: int, sequence_parallel: bool
) -> None:
    found = document(tp=tp, cp=cp, sequence_parallel=sequence_parallel)
    assert len(found["ranks"]) == tp * cp
    for step in found["steps"]:
        rows, columns = step["held_shape"]
        cells: set[tuple[int, int]] = set()
        for boxes in step["boxes"]:
            assert sum(map(area, boxes)) == rows * columns
            marks = [(a // 64, c // 64) for first, end, start, stop in boxes for a in range(first, end, 64)
                     for c in range(start, stop, 64)]  # fmt: skip
            cells |= {*marks}
        assert len(cells) * 64 * 64 == step["shape"][0] * step["shape"][1]
        if step["kind"] in ("all_gather", "reduce_scatter", "all_reduce"):
            assert step["sent_bytes"] == sent_bytes(step["kind"], step["bytes"], tp)


def test_tensor_parallelism_is_columns_then_rows() -> None:
    """Shoeybi et al. 2019, section 3, and Korthikanti et al. 2022, section 4.2.2."""
    plain, split = document(tp=4), document(tp=4, sequence_parallel=True)
    names = [[weight["name"] for weight in step["weights"]] for step in split["steps"] if step["weights"]]
    assert names == [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]]
    dims = [
        {part["dim"] for weight in step["weights"] for part in weight["splits"]}
        for step in split["steps"]
        if step["weights"]
    ]
    assert dims == [{0}, {1}, {0}, {1}]
    assert [step["partial"] for step in split["steps"] if step["weights"]] == [False, True, False, True]
    kinds = [step["kind"] for step in split["steps"]]
    half = ["all_gather", "matmul", "attention", "matmul", "reduce_scatter"]
    assert kinds == ["input", *half, *[{"attention": "elementwise"}.get(kind, kind) for kind in half]]
    assert "all_gather" not in [step["kind"] for step in plain["steps"]]
    assert [step["kind"] for step in plain["steps"]].count("all_reduce") == 2


def test_heads_that_are_fewer_than_ranks_are_copied() -> None:
    found = document(DENSE | {"model.num_kv_heads": 2}, tp=4)
    [step] = [each for each in found["steps"] if [weight["name"] for weight in each["weights"]][:1] == ["q_proj"]]
    boxes = {weight["name"]: [box[0] for box in weight["boxes"]] for weight in step["weights"]}
    assert len({*map(tuple, boxes["q_proj"])}) == 4
    assert boxes["k_proj"][0] == boxes["k_proj"][1] != boxes["k_proj"][2] == boxes["k_proj"][3]


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_the_ring_computes_the_causal_triangle_once_in_equal_parts(cp: int) -> None:
    ring = document(cp=cp)["ring"]
    length = ring["length"]
    assert len(ring["turns"]) == cp == ring["num_shifts"] + 1
    assert sum(ring["scores"]) == length * (length + 1) // 2 == sum(ring["contiguous_scores"])
    assert len({*ring["scores"]}) == 1
    assert all(a < b for a, b in pairwise(ring["contiguous_scores"]))
    unit = length // (2 * cp)
    seen: set[tuple[int, int]] = set()
    for turn, each in enumerate(ring["turns"]):
        for rank, own in enumerate(each["ranks"]):
            assert own["source"] == (rank - turn) % cp
            for first, end, start, stop, causal in own["pieces"]:
                tiles = [(q, k) for q in range(first // unit, end // unit) for k in range(start // unit, stop // unit)]
                assert not seen & {*tiles}
                assert all(q == k if causal else q > k for q, k in tiles)
                seen |= {*tiles}
    assert len(seen) == cp * (2 * cp + 1)


def test_every_expert_lies_on_one_rank_and_every_row_is_sent_to_it() -> None:
    found = document(MOE, ep=4)["experts"]
    assert found["experts"] == [[0, 2], [2, 4], [4, 6], [6, 8]]
    assert found["exchanges"] == 2
    assert found["exchange_bytes"] == 2048 * 2 * 4096 * 2
    for tokens, sent in zip(found["tokens"], found["sent"], strict=True):
        chosen = [expert // 2 for experts in tokens for expert in experts]
        assert sent == [chosen.count(rank) for rank in range(4)]
    assert found["rows"] == 2048 * 2
    assert document(MOE, ep=8)["experts"]["rows"] == 2048 * 2
    assert document(cp=1)["experts"] is None


def test_runs_of_the_literature_are_drawn_too() -> None:
    for run, own in (("llama3-405b-128k", {"tp": 8}), ("deepseek-v3-2k", {"ep": 8}), ("gpt3-175b", {"cp": 4})):
        assert json.loads(encoded("block", {"run": f"preset:{run}", **own}, silent))["steps"]


def test_blocks_that_cannot_be_drawn_are_refused() -> None:
    for own in ({"tp": 32}, {"tp": 3}, {"tp": 0}, {"ep": 2}):
        with pytest.raises(UserError):
            document(**own)
    for wrong in ({"tp": "4"}, {"sequence_parallel": 1}):
        with pytest.raises(Malformed):
            document(**wrong)


def test_the_page_walks_through_a_block(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/parallelism?parallelism.block=0")
    tab.wait_for_selector("svg[aria-label*='input and norm, split by tokens']")
    assert tab.locator("svg[aria-label^='A block'] text.rank").count() == 4
    tab.get_by_role("button", name="Step of the block: on").click()
    tab.wait_for_selector("svg[aria-label*='all-gather over tp: each rank sends']")
    tab.locator("fieldset:has-text('Sequence parallel') span", has_text="off").click()
    tab.wait_for_selector("svg[aria-label*='all-reduce over tp']")
    tab.locator("fieldset:has-text('Tensor parallel') span", has_text="8").click()
    tab.wait_for_selector("svg[aria-label^='A block on 8 ranks']")


def test_the_page_turns_the_ring_and_sends_tokens(watched: Watched) -> None:
    """The part that is looked at is in the address; each part asks for its own documents alone."""
    tab, asked = watched.tab, list[str]()
    tab.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    watched.open("#/parallelism?parallelism.cp=2&parallelism.part=context&parallelism.turn=0")
    tab.wait_for_selector("svg[aria-label^='Every rank has its own keys']")
    tab.get_by_role("button", name="Turn of the ring: on").click()
    tab.wait_for_selector("svg[aria-label^='Turn 1'] path.part.now")
    assert tab.locator("path.part.now").count() == 4
    assert "simulate" not in asked
    tab.locator("fieldset span", has_text="expert").click()
    in_address(tab, "parallelism.part=expert")
    tab.get_by_label("Stage of the exchange", exact=True).last.focus()
    tab.keyboard.press("End")
    tab.wait_for_selector("svg[aria-label^='All-to-all back']")
    assert tab.locator("path.way").count() == 4 * 6 * 2
