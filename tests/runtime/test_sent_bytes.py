"""Bytes are counted as they are sent: rows that stay on their rank are not, however uneven the parts of an all-to-all."""

from typing import Any

import torch

from fourfold.layout import resolve_layout
from fourfold.runtime.collectives import make_groups
from tests.support.parity_ranks import LINKS, prepare_rank
from tests.support.parity_runs import QWEN3_MOE, run_table
from tests.support.ranks import run_on_ranks

ROWS = [[5, 0, 1], [2, 7, 0], [0, 0, 3]]
"""How many rows each rank has for each."""
WIDTH = 4


def _sent(rank: int, table: dict[str, Any]) -> tuple[int, int]:
    """Bytes that the rank has sent, and those that equal parts would have been."""
    config, view = prepare_rank(rank, table, len(ROWS))
    assert resolve_layout(config, view.spec.model, len(ROWS)).ep == len(ROWS)
    group = make_groups(view.spec.layout, rank, ["ep"], 60.0, LINKS)["ep"]
    out, into = ROWS[rank], [row[rank] for row in ROWS]
    received = torch.empty(sum(into), WIDTH, dtype=torch.float64)
    group.all_to_all(received, torch.full((sum(out), WIDTH), float(rank), dtype=torch.float64), into, out).wait()
    assert received[:, 0].tolist() == [float(source) for source, rows in enumerate(into) for _ in range(rows)]
    return group.sent_bytes, group.sent_bytes - group.surplus_bytes


def test_an_all_to_all_counts_the_rows_that_leave() -> None:
    table = run_table(
        model={**QWEN3_MOE, "num_experts": 6},
        layout={"dp_shard": 3, "ep": 3},
        batch={"global_sequences": 3, "sequence_length": 6},
    )
    found = run_on_ranks(len(ROWS), _sent, table=table)
    row = WIDTH * 8
    assert [sent for sent, _ in found] == [row * (sum(rows) - rows[rank]) for rank, rows in enumerate(ROWS)]
    assert [equal for _, equal in found] == [row * sum(rows) * 2 // 3 for rows in ROWS]
