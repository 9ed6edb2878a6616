"""Pipelines give the gradients and the parameters of one process: every schedule, division of the model, number of microbatches."""

from pathlib import Path
from typing import Any

import pytest

from fourfold.program.schedule import order_text, schedule_orders, stage_ranks
from tests.support.parity_check import check_split
from tests.support.schedules import FIXED, least_stages, with_stages

pytestmark = pytest.mark.grid(1)

DEEP = {"num_layers": 6}
sweep = pytest.mark.sweep


def _pipeline(pp: int, schedule: str, microbatch: int = 2, **more: Any) -> dict[str, Any]:
    """12 sequences: 12 / `microbatch` microbatches."""
    return {"pp": pp, "schedule": schedule, "microbatch_sequences": microbatch, **more}


@pytest.mark.parametrize("microbatch", [pytest.param(1, marks=sweep), 2, pytest.param(4, marks=sweep), 12])
@pytest.mark.parametrize("schedule", with_stages(1))
@pytest.mark.parametrize("pp", [2, 4])
def test_one_stage_a_rank(pp: int, schedule: str, microbatch: int) -> None:
    """12, 6, 3 and 1 microbatches: more than ranks, no multiple of them, fewer."""
    check_split(pp, layout=_pipeline(pp, schedule, microbatch))


@pytest.mark.parametrize("microbatch", [pytest.param(1, marks=sweep), 2, pytest.param(4, marks=sweep), 12])
@pytest.mark.parametrize("schedule", with_stages(2))
@pytest.mark.parametrize("pp", [2, 4])
def test_two_stages_a_rank(pp: int, schedule: str, microbatch: int) -> None:
    check_split(pp, model=DEEP, layout=_pipeline(pp, schedule, microbatch, virtual_stages=2))


@sweep
@pytest.mark.parametrize("virtual", [3, 4])
@pytest.mark.parametrize("schedule", with_stages(4))
def test_more_stages_a_rank(schedule: str, virtual: int) -> None:
    check_split(2, model=DEEP, layout=_pipeline(2, schedule, 3, virtual_stages=virtual))


@pytest.mark.parametrize(
    ("pp", "virtual", "schedule", "stages"),
    [
        (2, 1, "1f1b", [1, 7]),
        (2, 1, "zb_h1", [7, 1]),
        (4, 1, "zb_h2", [1, 1, 5, 1]),
        pytest.param(4, 1, "1f1b", [4, 1, 2, 1], marks=sweep),
        pytest.param(4, 1, "auto", [2, 4, 1, 1], marks=sweep),
        (2, 2, "zb_v", [1, 4, 2, 1]),
        pytest.param(2, 2, "dualpipe_v", [3, 1, 1, 3], marks=sweep),
        pytest.param(2, 2, "interleaved_1f1b", [1, 1, 1, 5], marks=sweep),
        pytest.param(2, 2, "auto", [2, 1, 4, 1], marks=sweep),
    ],
    ids=str,
)
@pytest.mark.parametrize("tied", [False, True])
def test_uneven_stages(pp: int, virtual: int, schedule: str, stages: list[int], tied: bool) -> None:
    layout = _pipeline(pp, schedule, 4, virtual_stages=virtual, segments_per_stage=stages)
    check_split(pp, model={**DEEP, "tie_embeddings": tied}, layout=layout)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "zb_v", pytest.param("interleaved_1f1b", marks=sweep)])
@pytest.mark.parametrize("zero", [0, pytest.param(1, marks=sweep), pytest.param(2, marks=sweep), 3])
def test_tied_embeddings(schedule: str, zero: int) -> None:
    """The table's gradient is summed over the two stages, which are one on a V; sharded over two more ranks or not."""
    virtual = least_stages(schedule)
    layout = _pipeline(2, schedule, 2, virtual_stages=virtual, dp_shard=2, zero=zero)
    check_split(4, model={"tie_embeddings": True}, layout=layout)


@sweep
@pytest.mark.parametrize("schedule", [*FIXED, "auto"])
def test_tied_embeddings_of_four_stages(schedule: str) -> None:
    virtual = least_stages(schedule)
    layout = _pipeline(4, schedule, 3, virtual_stages=virtual)
    check_split(4, model={**DEEP, "tie_embeddings": True}, layout=layout)


@pytest.mark.parametrize("recompute", ["full", "selective", pytest.param("full:1", marks=sweep)])
@pytest.mark.parametrize("schedule", ["zb_h1", *(pytest.param(s, marks=sweep) for s in ("1f1b", "zb_v", "dualpipe_v"))])
def test_recompute(schedule: str, recompute: str) -> None:
    virtual = least_stages(schedule)
    layout = _pipeline(2, schedule, 2, virtual_stages=virtual, recompute=recompute)
    check_split(2, data={"document_mask": True}, layout=layout)


@pytest.mark.parametrize(
    "model",
    [{"qkv_bias": True}, {"qk_norm": True}, pytest.param({"num_kv_heads": 1, "vocab_size": 7}, marks=sweep)],
    ids=str,
)
def test_deferred_weight_gradients(model: dict[str, Any]) -> None:
    check_split(2, model=model, layout=_pipeline(2, "zb_h2", 3))


@pytest.mark.parametrize(("schedule", "virtual"), [("zb_h1", 1), ("zb_v", 2), pytest.param("gpipe", 1, marks=sweep)])
def test_a_schedule_from_a_text_file(tmp_path: Path, schedule: str, virtual: int) -> None:
    """The orders and the placement of a schedule, written out and read back."""
    text = order_text(schedule_orders(schedule, 2, virtual, 6), stage_ranks(schedule, 2, virtual))
    path = tmp_path / "orders.txt"
    path.write_text(text)
    check_split(2, layout=_pipeline(2, f"file:{path}", virtual_stages=virtual))


@pytest.mark.parametrize(("pp", "virtual"), [(2, 1), (2, 2), pytest.param(4, 1, marks=sweep)])
def test_a_schedule_from_a_python_function(pp: int, virtual: int) -> None:
    """Last in, first out, weight gradients at the very end, stages counted from the last rank."""
    schedule = "python:tests.support.combinations:last_in_first_out"
    check_split(pp, layout=_pipeline(pp, schedule, virtual_stages=virtual))
