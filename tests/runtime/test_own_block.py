"""A person's own block gives the losses, gradients and parameters of the same module in plain PyTorch, under every layout; its peak
is the one that the program predicts."""

from typing import Any

import pytest

from tests.support.own_block import BLOCK, check_own
from tests.support.parity_ranks import run_rank
from tests.support.parity_runs import run_table
from tests.support.ranks import run_on_ranks


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero(zero: int) -> None:
    check_own(2, layout={"dp_shard": 2, "zero": zero, "microbatch_sequences": 2})


@pytest.mark.parametrize(
    "layout",
    [
        {"dp_replicate": 2, "dp_shard": 2, "zero": 3},
        {"dp_replicate": 2, "dp_shard": 2, "zero": 2, "recompute": "full"},
        {"dp_shard": 2, "zero": 3, "recompute": "full:2"},
        {"recompute": "selective"},
        {"pp": 2, "schedule": "1f1b"},
        {"pp": 2, "dp_shard": 2, "zero": 3, "schedule": "1f1b", "recompute": "full"},
        {"pp": 2, "virtual_stages": 2, "schedule": "interleaved_1f1b"},
        {"pp": 2, "schedule": "zb_h1"},
        {"pp": 2, "virtual_stages": 2, "schedule": "zb_v", "recompute": "full"},
        {"cp": 2, "cp_method": "all_gather", "zero": 3},
        {"cp": 4, "cp_method": "all_gather"},
        {"cp": 2, "cp_method": "all_gather", "pp": 2, "schedule": "1f1b", "recompute": "full"},
    ],
    ids=lambda layout: "-".join(f"{key}_{value}" for key, value in layout.items()),
)
def test_layouts(layout: dict[str, Any]) -> None:
    ranks = layout.get("pp", 1) * layout.get("cp", 1) * layout.get("dp_shard", 1) * layout.get("dp_replicate", 1)
    check_own(ranks, layout={"microbatch_sequences": 3, **layout})


@pytest.mark.parametrize(
    "layout", [{"dp_shard": 2, "zero": 3}, {"cp": 2, "cp_method": "all_gather"}], ids=["zero", "cp"]
)
def test_documents(layout: dict[str, Any]) -> None:
    check_own(2, layout={"microbatch_sequences": 3, **layout}, data={"document_mask": True})


LARGE = {
    "block": BLOCK,
    "num_layers": 4,
    "hidden_size": 192,
    "num_heads": 6,
    "num_kv_heads": 2,
    "ffn_size": 512,
    "vocab_size": 512,
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (1, {}),
        (2, {"dp_shard": 2, "zero": 3}),
        (2, {"pp": 2, "schedule": "1f1b"}),
        (2, {"pp": 2, "schedule": "zb_h1"}),
        (2, {"cp": 2, "cp_method": "all_gather"}),
    ],
    ids=["one rank", "dp", "pp", "halves", "cp"],
)
def test_predicted_peak_is_the_measured_peak(ranks: int, layout: dict[str, Any], recompute: str) -> None:
    table = run_table(
        model=LARGE,
        batch={"global_sequences": 4, "sequence_length": 256, "steps": 1},
        layout={**layout, "recompute": recompute, "microbatch_sequences": 2},
        precision={"compute": "fp32"},
    )
    for result in run_on_ranks(ranks, run_rank, table=table, ranks=ranks, track_memory=True):
        assert result["predicted_peak"] == pytest.approx(result["peak"], rel=0.01)
