"""Multi-token prediction: the peak that a program predicts is the peak of live tensor bytes that its execution reaches."""

from typing import Any

import pytest

from tests.support.parity_ranks import run_rank
from tests.support.parity_runs import run_table
from tests.support.ranks import run_on_ranks

MODEL = {
    "num_layers": 3,
    "hidden_size": 192,
    "num_heads": 6,
    "num_kv_heads": 6,
    "head_dim": 32,
    "ffn_size": 512,
    "vocab_size": 512,
    "mtp_layers": 2,
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (1, {}),
        (2, {"dp_shard": 2, "zero": 3}),
        (2, {"tp": 2, "sequence_parallel": True}),
        (2, {"pp": 2, "schedule": "zb_h1"}),
        (2, {"cp": 2}),
    ],
    ids=["one rank", "dp", "tp+sequence", "pp", "cp"],
)
def test_predicted_peak_is_the_measured_peak(ranks: int, layout: dict[str, Any], recompute: str) -> None:
    table = run_table(
        model=MODEL,
        batch={"global_sequences": 4, "sequence_length": 256, "steps": 1},
        layout={**layout, "recompute": recompute, "microbatch_sequences": 2},
        precision={"compute": "fp32"},
    )
    for result in run_on_ranks(ranks, run_rank, table=table, ranks=ranks, track_memory=True):
        assert result["predicted_peak"] == pytest.approx(result["peak"], rel=0.01)
