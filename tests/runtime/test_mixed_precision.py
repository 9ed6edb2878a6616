"""bf16 matmuls with fp32 weights beside them: losses and norms near those of fp32, under every way to split a model."""

from typing import Any

import pytest

from tests.support.parity_check import check_bytes, divisible, expected_record
from tests.support.parity_ranks import run_rank
from tests.support.parity_runs import MIXTRAL, run_table
from tests.support.ranks import run_on_ranks

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "pipeline": (2, {"pp": 2, "schedule": "zb_h1"}),
    "zero 3": (2, {"dp_shard": 2, "zero": 3}),
    "ring": (2, {"cp": 2}),
    "gathered": (2, {"cp": 2, "cp_method": "all_gather"}),
    "sequence": (2, {"tp": 2, "sequence_parallel": True}),
    "experts": (2, {"tp": 2, "ep": 2}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_bf16_is_near_fp32(name: str) -> None:
    ranks, layout = LAYOUTS[name]
    sections = divisible(
        model=MIXTRAL if name == "experts" else {},
        layout={"microbatch_sequences": 3, **layout},
        precision={"compute": "bf16"},
    )
    table = run_table(**sections)
    results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks)
    check_bytes(table, results)
    expected = expected_record(table, "fp32")
    for result in results:
        assert result["losses"] == pytest.approx(expected.losses, rel=5e-3)
        assert result["norms"] == pytest.approx(expected.norms, rel=5e-2)
