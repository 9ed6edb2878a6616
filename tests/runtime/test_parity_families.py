"""Every family of `model_families`: loss, gradients and parameters equal transformers' in fp64, under layouts of every axis.

`make test` runs three layouts of each; the rest of forty is drawn from a seed, and `pytest --hypothesis-seed=N` draws others.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.combination_check import check_combination
from tests.support.combinations import combination
from tests.support.model_families import FAMILIES, ODD
from tests.support.parity_check import check_parity, check_split

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


ODD_LAYOUTS = {
    "context": (4, {"cp": 4, "cp_method": "ring", "microbatch_sequences": 3}),
    "tensor": (2, {"tp": 2, "sequence_parallel": True, "microbatch_sequences": 3}),
    "a layer a stage": (3, {"pp": 3, "schedule": "zb_h1", "microbatch_sequences": 3, "segments_per_stage": [2, 1, 2]}),
}


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ODD_LAYOUTS)
@pytest.mark.parametrize("odd", ODD)
def test_sizes_at_the_edge(odd: str, layout: str) -> None:
    """With SGD: a query that sees one key has no gradient, and other optimizers make steps of its rounding."""
    family, keys = ODD[odd]
    ranks, degrees = ODD_LAYOUTS[layout]
    check_parity(
        ranks,
        model={**FAMILIES[family], "num_layers": 3, **keys, "vocab_size": 99},
        data={"document_mask": layout != "a layer a stage"},
        batch={"sequence_length": 16, "steps": 2},
        layout=degrees,
        optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.5},
    )


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(COUNT))
@pytest.mark.parametrize("name", FAMILIES)
def test_a_drawn_layout(pytestconfig: pytest.Config, name: str, number: int, tmp_path: Path) -> None:
    """Resumed under another layout too; bytes and memory are those that the program declares."""
    stated: Any = pytestconfig.getoption("--hypothesis-seed")
    seed = (SEED if stated is None else int(stated)) * 1000 + number
    check_combination(combination(seed, RANKS[number % len(RANKS)], 1 + number % 4, FAMILIES[name]), tmp_path)
