"""Matmuls by oneDNN reach the peak that the program predicts: what they add to a buffer takes a small temporary."""

import pytest

from fourfold.kernels.matmul.libraries import KINDS
from tests.support.parity_ranks import run_rank
from tests.support.parity_runs import run_table
from tests.support.ranks import run_on_ranks

MODEL = {"num_layers": 2, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 704, "vocab_size": 16384}
"""The head's weight gradient, 17 MB, would be a tenth of the peak."""


@pytest.mark.parametrize(("ranks", "zero", "recompute"), [(1, 0, "none"), (2, 3, "full")])
def test_the_peak_is_the_predicted_one(ranks: int, zero: int, recompute: str) -> None:
    table = run_table(
        model=MODEL,
        batch={"global_sequences": 4, "sequence_length": 64, "steps": 1},
        layout={"dp_shard": ranks, "zero": zero, "recompute": recompute, "microbatch_sequences": 2},
        precision={"compute": "fp32"},
    )
    result = run_on_ranks(ranks, run_rank, table=table, ranks=ranks, track_memory=True, by_library=KINDS)[0]
    assert result["peak"] == pytest.approx(result["predicted_peak"], rel=0.01)
