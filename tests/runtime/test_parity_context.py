"""A split sequence gives the gradients and the parameters of one process, by every way of attending over it."""

from typing import Any

import pytest

from tests.support.parity_check import check_single, check_split
from tests.support.parity_runs import DEEPSEEK_V3

pytestmark = pytest.mark.grid(1)

sweep = pytest.mark.sweep
METHODS = [(2, "ring"), (2, "all_gather"), (2, "ulysses"), (4, "ring"), (4, "all_gather"), (4, "ulysses")]
METHODS += [(4, "ring+ulysses:2")]
methods = pytest.mark.parametrize(("cp", "method"), METHODS)
two_ranks = pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses"])


def _context(cp: int, method: str, **more: Any) -> dict[str, Any]:
    return {"cp": cp, "cp_method": method, "microbatch_sequences": 4, **more}


@methods
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "documents"])
def test_methods(cp: int, method: str, masked: bool) -> None:
    check_split(cp, data={"document_mask": masked}, layout=_context(cp, method))


@methods
@pytest.mark.parametrize(
    "model",
    [
        {"num_kv_heads": 1, "qk_norm": True},
        pytest.param({"num_kv_heads": 4, "qkv_bias": True}, marks=sweep),
        pytest.param({"tie_embeddings": True, "vocab_size": 7}, marks=sweep),
    ],
    ids=str,
)
def test_architectures(cp: int, method: str, model: dict[str, Any]) -> None:
    """One key and value head for several ulysses ranks, as many as query heads, an odd vocabulary."""
    check_split(cp, model=model, layout=_context(cp, method))


@methods
@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=sweep)], ids=["whole", "documents"])
@pytest.mark.parametrize("window", [2, pytest.param(3, marks=sweep), 7])
def test_windows(cp: int, method: str, masked: bool, window: int) -> None:
    """In some of the layers; within a chunk, and beyond."""
    model = {"qkv_bias": True, "sliding_window": window, "exceptions": [{"layers": [0], "sliding_window": 0}]}
    check_split(cp, model=model, data={"document_mask": masked}, layout=_context(cp, method))


@methods
@pytest.mark.parametrize("masked", [pytest.param(False, marks=sweep), pytest.param(True, marks=sweep)])
def test_mla(cp: int, method: str, masked: bool) -> None:
    """Values of another size than queries and keys, one rotated key for all heads."""
    check_split(cp, model=DEEPSEEK_V3, data={"document_mask": masked}, layout=_context(cp, method))


@two_ranks
@pytest.mark.parametrize("recompute", ["full", pytest.param("selective", marks=sweep)])
def test_recompute(method: str, recompute: str) -> None:
    check_split(2, data={"document_mask": True}, layout=_context(2, method, recompute=recompute))


@two_ranks
@pytest.mark.parametrize("zero", [pytest.param(z, marks=[] if z == 3 else sweep) for z in range(4)])
def test_state_is_sharded_over_the_sequences_ranks(method: str, zero: int) -> None:
    check_split(2, model={"tie_embeddings": True}, layout=_context(2, method, zero=zero, microbatch_sequences=3))


@sweep
@pytest.mark.parametrize("length", [4, 8, 36])
@two_ranks
def test_short_and_long_sequences(method: str, length: int) -> None:
    """Chunks of a single token; documents that cover many chunks, and chunks with many documents."""
    check_split(2, batch={"sequence_length": length}, data={"document_mask": True}, layout=_context(2, method))


@sweep
@pytest.mark.parametrize("method", ["ring", "all_gather", "ring+ulysses:2", "ring+ulysses:4"])
@pytest.mark.parametrize("masked", [False, True])
def test_eight_ranks(method: str, masked: bool) -> None:
    layout = _context(8, method, microbatch_sequences=12, zero=2)
    check_split(8, data={"document_mask": masked}, layout=layout)


@two_ranks
def test_in_fp32(method: str) -> None:
    check_single(2, data={"document_mask": True}, layout=_context(2, method))
