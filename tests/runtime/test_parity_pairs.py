"""Every two ways to split a model together: gradients and parameters of one process, under every recompute policy."""

from itertools import combinations
from typing import Any

import pytest

from tests.support.parity_check import check_split
from tests.support.parity_runs import MIXTURES

pytestmark = pytest.mark.grid(1)

sweep = pytest.mark.sweep
WAYS: dict[str, dict[str, Any]] = {
    "pipeline": {"pp": 2},
    "zero bubble": {"pp": 2, "schedule": "zb_v", "virtual_stages": 2},
    "replicas": {"dp_replicate": 2},
    "data": {"dp_shard": 2, "zero": 0},
    "zero 1": {"dp_shard": 2, "zero": 1},
    "zero 2": {"dp_shard": 2, "zero": 2},
    "zero 3": {"dp_shard": 2, "zero": 3},
    "ring": {"cp": 2, "cp_method": "ring"},
    "gathered": {"cp": 2, "cp_method": "all_gather"},
    "ulysses": {"cp": 2, "cp_method": "ulysses"},
    "tensor": {"tp": 2},
    "sequence": {"tp": 2, "sequence_parallel": True},
}
PAIRS = [pair for pair in combinations(WAYS, 2) if not (WAYS[pair[0]].keys() & WAYS[pair[1]].keys() - {"zero"})]
QUICK = {
    ("pipeline", "zero 3"),
    ("pipeline", "sequence"),
    ("zero bubble", "tensor"),
    ("zero bubble", "ring"),
    ("replicas", "zero 2"),
    ("zero 3", "gathered"),
    ("zero 1", "sequence"),
    ("ulysses", "tensor"),
    ("ring", "sequence"),
}
assert set(PAIRS) >= QUICK
quick_pairs = [pair if pair in QUICK else pytest.param(pair, marks=sweep) for pair in PAIRS]


def _layout(pair: tuple[str, str], **more: Any) -> dict[str, Any]:
    layout = {**WAYS[pair[0]], **WAYS[pair[1]]}
    rows = 1 if {"dp_replicate", "dp_shard"} <= layout.keys() else 2
    return {**layout, "microbatch_sequences": rows, **more}


@pytest.mark.parametrize("pair", quick_pairs, ids="+".join)
def test_dense(pair: tuple[str, str]) -> None:
    model = {"tie_embeddings": True, "qk_norm": True}
    check_split(4, model=model, data={"document_mask": True}, layout=_layout(pair))


@sweep
@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_dense_recomputed(pair: tuple[str, str], recompute: str) -> None:
    check_split(4, model={"qkv_bias": True, "num_kv_heads": 1}, layout=_layout(pair, recompute=recompute))


QUICK_EXPERTS = {("pipeline", "sequence"), ("zero 3", "tensor"), ("zero 2", "ring")}
expert_pairs = [pair if pair in QUICK_EXPERTS else pytest.param(pair, marks=sweep) for pair in PAIRS]


@pytest.mark.parametrize("pair", expert_pairs, ids="+".join)
@pytest.mark.parametrize("family", [*(pytest.param(f, marks=sweep) for f in ("mixtral", "qwen3_moe")), "deepseek_v3"])
def test_experts(pair: tuple[str, str], family: str) -> None:
    """Over as many ranks as a stage of a replica has."""
    layout = _layout(pair)
    held = layout.get("dp_shard", 1) * layout.get("cp", 1) * layout.get("tp", 1)
    check_split(4, model=MIXTURES[family], layout={**layout, "ep": held})


@sweep
@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if "ring" in pair or "sequence" in pair], ids="+".join)
def test_experts_split_in_width(pair: tuple[str, str], recompute: str) -> None:
    model = MIXTURES["deepseek_v3" if recompute == "full" else "mixtral"]
    check_split(4, model=model, layout=_layout(pair, etp=2, recompute=recompute))
