"""The z-loss of the next token's logits (PaLM, section 5) under every kind of layout equals autograd's on transformers' model."""

from typing import Any

import pytest

from tests.support.parity_check import check_parity
from tests.support.parity_runs import DEEPSEEK_V3, MIXTURES

WEIGHT = {"logits_z_loss": 0.02}
MODELS: dict[str, dict[str, Any]] = {
    "tied, padded": {"vocab_size": 97, "tie_embeddings": True},
    "router's z-loss too": {**MIXTURES["mixtral"], "z_loss": 0.01},
    "module ahead": {**DEEPSEEK_V3, "vocab_size": 96, "mtp_layers": 1, "mtp_loss": 0.3},
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "dp, sharded": (2, {"dp_shard": 2, "zero": 3}),
    "tp+sequence": (2, {"tp": 2, "sequence_parallel": True}),
    "pp, zero bubble": (2, {"pp": 2, "schedule": "zb_h1"}),
    "cp": (2, {"cp": 2}),
    "cp x tp": (4, {"cp": 2, "tp": 2}),
}


@pytest.mark.grid(1, of=lambda name, layout, masked: {"name": name, "masked": masked, **LAYOUTS[layout][1]})
@pytest.mark.parametrize("masked", [False, True], ids=["rows", "documents"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_every_layout(name: str, layout: str, masked: bool) -> None:
    ranks, section = LAYOUTS[layout]
    sections = {"microbatch_sequences": 2, **section}
    check_parity(ranks, model={**MODELS[name], **WEIGHT}, data={"document_mask": masked}, layout=sections)
