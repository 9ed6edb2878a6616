"""GPT-2's family under every kind of layout equals transformers' GPT2LMHeadModel: LayerNorm, biases, learned positions."""

from typing import Any

import pytest

from tests.support.parity_check import check_parity

pytestmark = pytest.mark.grid(1)

GPT2: dict[str, Any] = {"family": "gpt2", "num_kv_heads": 4, "vocab_size": 96, "max_position": 32}
SMALL = {"microbatch_sequences": 2}
DULL = {"eps": 1e-4}
"""AdamW divides even a gradient that is rounding alone (the key biases') by its own size, unless eps is larger than that."""
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "dp": (2, {"dp_shard": 2, "zero": 1}),
    "dp, sharded": (2, {"dp_shard": 2, "zero": 3}),
    "tp": (2, {"tp": 2}),
    "tp+sequence": (2, {"tp": 2, "sequence_parallel": True}),
    "pp": (2, {"pp": 2}),
    "cp": (2, {"cp": 2}),
    "cp, gathered": (2, {"cp": 2, "cp_method": "all_gather"}),
    "cp, heads": (2, {"cp": 2, "cp_method": "ulysses"}),
    "4 tp+sequence": (4, {"tp": 4, "sequence_parallel": True}),
    "4 pp": (4, {"pp": 4}),
    "pp, interleaved": (2, {"pp": 2, "virtual_stages": 2, "schedule": "interleaved_1f1b"}),
    "pp, zero bubble": (2, {"pp": 2, "schedule": "zb_h1"}),
    "pp, V": (2, {"pp": 2, "virtual_stages": 2, "schedule": "zb_v"}),
    "dp x tp+sequence": (4, {"dp_shard": 2, "zero": 3, "tp": 2, "sequence_parallel": True}),
    "pp x tp+sequence, zero bubble": (4, {"pp": 2, "schedule": "zb_h1", "tp": 2, "sequence_parallel": True}),
    "pp x cp": (4, {"pp": 2, "cp": 2}),
    "cp x tp": (4, {"cp": 2, "tp": 2}),
    "cp x tp+sequence": (4, {"cp": 2, "tp": 2, "sequence_parallel": True}),
}


@pytest.mark.grid(1, of=lambda name, masked: {"masked": masked, **LAYOUTS[name][1]})
@pytest.mark.parametrize("masked", [False, True], ids=["rows", "documents"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout(name: str, masked: bool) -> None:
    ranks, layout = LAYOUTS[name]
    check_parity(ranks, model=GPT2, optimizer=DULL, data={"document_mask": masked}, layout={**SMALL, **layout})


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("name", ["one rank", "tp", "tp+sequence", "cp", "pp, zero bubble"])
def test_recompute(name: str, recompute: str) -> None:
    ranks, layout = LAYOUTS[name]
    check_parity(ranks, model=GPT2, optimizer=DULL, layout={**SMALL, **layout, "recompute": recompute})


@pytest.mark.parametrize("name", ["pp", "tp+sequence"])
def test_untied(name: str) -> None:
    ranks, layout = LAYOUTS[name]
    check_parity(ranks, model={**GPT2, "tie_embeddings": False}, optimizer=DULL, layout={**SMALL, **layout})
