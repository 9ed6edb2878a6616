"""Multi-token prediction under every kind of layout equals plain torch on transformers' blocks in one process."""

from typing import Any

import pytest

from tests.support.parity_check import check_parity
from tests.support.parity_runs import DEEPSEEK_V3

ONE: dict[str, Any] = {**DEEPSEEK_V3, "vocab_size": 96, "mtp_layers": 1}
TWO: dict[str, Any] = {"vocab_size": 96, "tie_embeddings": True, "mtp_layers": 2, "mtp_loss": 0.5}
MODELS = {"deepseek": ONE, "llama, two, tied": TWO}
SMALL = {"microbatch_sequences": 2}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "dp": (2, {"dp_shard": 2, "zero": 1}),
    "dp, gradients sharded": (2, {"dp_shard": 2, "zero": 2}),
    "dp, sharded": (2, {"dp_shard": 2, "zero": 3}),
    "tp": (2, {"tp": 2}),
    "tp+sequence": (2, {"tp": 2, "sequence_parallel": True}),
    "pp": (2, {"pp": 2}),
    "pp, zero bubble": (2, {"pp": 2, "schedule": "zb_h1"}),
    "pp, V": (2, {"pp": 2, "virtual_stages": 2, "schedule": "zb_v"}),
    "cp": (2, {"cp": 2}),
    "cp, heads": (2, {"cp": 2, "cp_method": "ulysses"}),
    "pp x tp+sequence": (4, {"pp": 2, "schedule": "zb_h1", "tp": 2, "sequence_parallel": True}),
    "pp x dp, sharded": (4, {"pp": 2, "dp_shard": 2, "zero": 3}),
    "cp x tp+sequence": (4, {"cp": 2, "tp": 2, "sequence_parallel": True}),
}


@pytest.mark.grid(1, of=lambda name, layout, masked: {"name": name, "masked": masked, **LAYOUTS[layout][1]})
@pytest.mark.parametrize("masked", [False, True], ids=["rows", "documents"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_every_layout(name: str, layout: str, masked: bool) -> None:
    ranks, section = LAYOUTS[layout]
    check_parity(ranks, model=MODELS[name], data={"document_mask": masked}, layout={**SMALL, **section})


@pytest.mark.grid(1)
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("layout", ["one rank", "tp+sequence", "pp, zero bubble"])
@pytest.mark.parametrize("name", MODELS)
def test_recompute(name: str, layout: str, recompute: str) -> None:
    ranks, section = LAYOUTS[layout]
    check_parity(ranks, model=MODELS[name], layout={**SMALL, **section, "recompute": recompute})


@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_spread(ranks: int) -> None:
    check_parity(
        ranks, model=ONE, layout={**SMALL, "microbatch_sequences": 1, "dp_shard": ranks, "zero": 1, "ep": ranks}
    )
