"""The smallest sizes that a run can have: microbatches of one token, one head of two numbers, a feed-forward of one. Views that
coincide there, and nowhere else, change no number."""

from typing import Any

import pytest

from tests.support.parity_check import check_parity
from tests.support.parity_runs import MIXTURES

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "q and k norms": {"qk_norm": True},
    "smallest": {"num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "ffn_size": 1, "hidden_size": 2, "vocab_size": 6},
    "smallest with norms": {
        **{"num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "ffn_size": 1, "hidden_size": 2, "vocab_size": 6},
        **{"qk_norm": True, "tie_embeddings": True},
    },
    "gpt2": {"family": "gpt2", "ffn_size": 64, "num_kv_heads": 4, "max_position": 64},
    **MIXTURES,
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("ranks", "zero"), [(1, 0), (2, 1), (2, 3)])
@pytest.mark.parametrize("name", MODELS)
def test_microbatches_of_one_token(name: str, ranks: int, zero: int, recompute: str) -> None:
    check_parity(
        ranks,
        model=MODELS[name],
        batch={"sequence_length": 1, "global_sequences": ranks, "steps": 2},
        layout={"dp_shard": ranks, "zero": zero, "recompute": recompute},
        optimizer={"eps": 1e-3},
    )


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("q and k norms", {"pp": 2, "schedule": "zb_h1"}),
        ("deepseek_v3", {"pp": 2, "schedule": "zb_h1"}),
        ("q and k norms", {"tp": 2}),
    ],
    ids=str,
)
def test_one_token_over_stages_and_heads(name: str, layout: dict[str, Any]) -> None:
    check_parity(
        2,
        model={**MODELS[name], "vocab_size": 96},
        batch={"sequence_length": 1, "global_sequences": 2, "steps": 2},
        layout=layout,
        optimizer={"eps": 1e-3},
    )
