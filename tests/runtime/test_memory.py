"""The peak that a program's buffers predict is the peak of live tensor bytes that its execution reaches."""

import pytest

from tests.support.parity import run_rank, run_table
from tests.support.ranks import run_on_ranks

MODEL = {
    "num_layers": 6,
    "hidden_size": 192,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 32,
    "ffn_size": 512,
    "vocab_size": 2048,
}
GPT2 = {"family": "gpt2", "num_kv_heads": 6}


def _error(ranks: int, layout: dict, compute: str, sequence_length: int = 128, **sections) -> float:
    table = run_table(
        model={**MODEL, **sections.pop("model", {})},
        batch={"global_sequences": 8, "sequence_length": sequence_length},
        layout=layout,
        precision={"compute": compute},
        **sections,
    )
    result = run_on_ranks(ranks, run_rank, table=table, ranks=ranks, track_memory=True)[0]
    return result["predicted_peak"] / result["peak"] - 1


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_predicted_peak_is_the_measured_peak(zero: int, recompute: str, compute: str) -> None:
    layout = {"dp_shard": 2, "zero": zero, "recompute": recompute, "microbatch_sequences": 4}
    assert abs(_error(2, layout, compute)) < 0.005


@pytest.mark.parametrize(
    ("model", "data", "length"),
    [
        ({"qk_norm": True}, {}, 128),
        ({"tie_embeddings": True, "qkv_bias": True}, {}, 256),
        ({"ffn_size": 64, "num_kv_heads": 6}, {}, 256),
        ({"vocab_size": 16384, "num_layers": 1}, {}, 64),
        ({}, {"document_mask": True}, 128),
        ({**GPT2, "max_position": 64}, {}, 64),
        ({**GPT2, "max_position": 128}, {"document_mask": True}, 128),
    ],
    ids=["qk-norm", "tied-bias", "wide-attention", "wide-vocabulary", "documents", "gpt2", "gpt2-documents"],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_other_shapes(model: dict, data: dict, length: int, recompute: str) -> None:
    layout = {"dp_shard": 2, "zero": 3, "recompute": recompute, "microbatch_sequences": 2}
    assert abs(_error(2, layout, "fp32", length, model=model, data=data)) < 0.03
