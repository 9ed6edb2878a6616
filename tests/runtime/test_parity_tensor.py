"""Tensor parallelism gives the gradients and the parameters of one process, with and without sequence parallelism."""

from typing import Any

import pytest

from tests.support.parity_check import check_single, check_split

pytestmark = pytest.mark.grid(1)

sweep = pytest.mark.sweep
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one-kv-head": {"num_kv_heads": 1},
    "kv-head-each": {"num_kv_heads": 4},
    "biases": {"qkv_bias": True, "num_kv_heads": 1},
    "head-norms": {"qk_norm": True},
    "head-norms-copied": {"qk_norm": True, "num_kv_heads": 1, "tie_embeddings": True},
    "tied": {"tie_embeddings": True},
    "padded": {"vocab_size": 97},
    "padded-tied": {"vocab_size": 99, "tie_embeddings": True},
}
QUICK = {"plain", "biases", "head-norms-copied", "padded", "padded-tied"}
named = pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=sweep) for name in MODELS])
sequence_parallel = pytest.mark.parametrize("sequence", [False, True], ids=["whole", "sequence"])


def _tensor(tp: int, sequence: bool, **more: Any) -> dict[str, Any]:
    return {"tp": tp, "sequence_parallel": sequence, "microbatch_sequences": 4, **more}


@named
@sequence_parallel
@pytest.mark.parametrize("tp", [2, 4])
def test_architectures(tp: int, sequence: bool, name: str) -> None:
    """Key and value heads that divide by the ranks, and fewer of them than ranks."""
    check_split(tp, model=MODELS[name], layout=_tensor(tp, sequence))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_padded_vocabulary_under_zero_and_pipelines(zero: int, family: str) -> None:
    """GPT-2's vocabulary of 50,257, in small: tied, and positions are learned. Its optimizer's eps is above the rounding of the key
    biases' gradients, which are zero."""
    gpt2 = {"family": "gpt2", "num_kv_heads": 4, "max_position": 32}
    model = {"vocab_size": 67, **(gpt2 if family == "gpt2" else {})}
    parts = {"pp": 2, "dp_shard": 1} if zero == 0 else {"dp_shard": 2, "zero": zero}
    layout = _tensor(2, True, **{**parts, "microbatch_sequences": 2})
    check_split(4, model=model, layout=layout, optimizer={"eps": 1e-4} if family == "gpt2" else {})


@pytest.mark.parametrize("recompute", ["selective", "full"])
@sequence_parallel
def test_recompute(sequence: bool, recompute: str) -> None:
    check_split(2, model={"qkv_bias": True}, layout=_tensor(2, sequence, recompute=recompute))


@sequence_parallel
@pytest.mark.parametrize("recompute", ["none", pytest.param("full", marks=sweep)])
def test_masked_documents(sequence: bool, recompute: str) -> None:
    check_split(2, data={"document_mask": True}, layout=_tensor(2, sequence, recompute=recompute))


@pytest.mark.parametrize("limit", [None, pytest.param(1e-3, marks=sweep), pytest.param(1e6, marks=sweep)])
@sequence_parallel
def test_clipping(sequence: bool, limit: float | None) -> None:
    check_split(2, optimizer={"clip_norm": limit}, model={"num_kv_heads": 1}, layout=_tensor(2, sequence))


@pytest.mark.parametrize("microbatch", [1, pytest.param(3, marks=sweep), pytest.param(12, marks=sweep)])
@sequence_parallel
def test_numbers_of_microbatches(sequence: bool, microbatch: int) -> None:
    check_split(2, layout=_tensor(2, sequence, microbatch_sequences=microbatch))


@sweep
@sequence_parallel
def test_eight_ranks(sequence: bool) -> None:
    model = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 4, "qk_norm": True}
    check_split(8, model=model, layout=_tensor(8, sequence))


@sequence_parallel
@pytest.mark.parametrize("tp", [2, pytest.param(4, marks=sweep)])
def test_in_fp32(tp: int, sequence: bool) -> None:
    check_single(tp, layout=_tensor(tp, sequence))
