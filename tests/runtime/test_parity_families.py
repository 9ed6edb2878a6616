"""Every family of `model_families`: loss, gradients and parameters equal transformers' in fp64, under layouts of every axis.

`make test` runs three layouts of each; the rest of forty is drawn from a seed, and `pytest --hypothesis-seed=N` draws others.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.combination_check import check_combination
from tests.support.combinations import combination
from tests.support.model_families import FAMILIES
from tests.support.parity_check import check_split

SEED, COUNT = 20261127, 40
QUICK = {
    "sharded": (2, {"dp_shard": 2, "zero": 3, "microbatch_sequences": 3, "recompute": "selective"}),
    "pipeline and tensor": (
        4,
        {
            "pp": 2,
            "tp": 2,
            "schedule": "zb_h1",
            "sequence_parallel": True,
            "microbatch_sequences": 3,
            "recompute": "full:1",
        },
    ),
    "context": (2, {"cp": 2, "cp_method": "ring", "microbatch_sequences": 6}),
}
RANKS = (4, 2, 3, 4, 8, 2, 6, 4)


@pytest.mark.parametrize("layout", QUICK)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_layout(name: str, layout: str) -> None:
    ranks, degrees = QUICK[layout]
    check_split(ranks, model=FAMILIES[name], data={"document_mask": layout == "context"}, layout=degrees)


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(COUNT))
@pytest.mark.parametrize("name", FAMILIES)
def test_a_drawn_layout(pytestconfig: pytest.Config, name: str, number: int, tmp_path: Path) -> None:
    """Resumed under another layout too; bytes and memory are those that the program declares."""
    stated: Any = pytestconfig.getoption("--hypothesis-seed")
    seed = (SEED if stated is None else int(stated)) * 1000 + number
    check_combination(combination(seed, RANKS[number % len(RANKS)], 1 + number % 4, FAMILIES[name]), tmp_path)
