"""Steps that compare replicas and compute twice: they are what they are without, and one bit that is flipped shows."""

from typing import Any

import pytest
import torch

from fourfold.runtime.corruption import checksum
from tests.runtime.test_memory import _check, _error
from tests.support.grid import others_are_rest
from tests.support.parity_check import check_parity, check_split
from tests.support.parity_runs import MIXTURES

sweep = pytest.mark.sweep
EVERY_STEP = {"checksum_every_steps": 1, "replay_every_steps": 1}
TIED = {"tie_embeddings": True, "qk_norm": True}
WAYS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "replicas": (2, {"dp_shard": 2, "zero": 0, "microbatch_sequences": 2}, TIED),
    "recomputed": (2, {"dp_shard": 2, "zero": 1, "microbatch_sequences": 2, "recompute": "full"}, {}),
    "selective": (2, {"dp_shard": 2, "zero": 2, "microbatch_sequences": 2, "recompute": "selective"}, TIED),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2, "zero": 3}, TIED),
    "zero bubble, tied": (4, {"pp": 2, "schedule": "zb_h1", "dp_shard": 2, "zero": 2}, TIED),
    "both ways": (2, {"pp": 2, "schedule": "zb_v", "virtual_stages": 2}, {}),
    "interleaved": (4, {"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "dp_shard": 2}, {}),
    "tensor, sequence": (4, {"tp": 2, "sequence_parallel": True, "dp_shard": 2, "zero": 3}, {}),
    "copied heads": (4, {"tp": 4}, {"num_kv_heads": 1, "num_heads": 4}),
    "ring": (2, {"cp": 2, "zero": 1}, TIED),
}
QUICK = ("selective", "zero bubble, tied", "tensor, sequence", "ring")


@pytest.mark.parametrize("way", others_are_rest(WAYS, QUICK))
def test_checked_steps_are_the_same_steps(way: str) -> None:
    """The losses, gradients and parameters of one process of another library, and the bytes that the program declares."""
    ranks, layout, model = WAYS[way]
    check_split(ranks, model={**model, "num_layers": 4}, layout=layout, faults=EVERY_STEP)


@pytest.mark.parametrize("family", [*(pytest.param(f, marks=sweep) for f in ("mixtral", "qwen3_moe")), "deepseek_v3"])
def test_experts(family: str) -> None:
    """Loads and auxiliary losses count once."""
    layout = {"dp_shard": 2, "tp": 2, "ep": 2, "zero": 2, "sequence_parallel": True}
    check_split(4, model=MIXTURES[family], layout=layout, faults=EVERY_STEP)


def test_one_rank_alone() -> None:
    check_parity(1, layout={"microbatch_sequences": 4}, faults=EVERY_STEP)


@pytest.mark.grid(1)
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize("zero", [0, pytest.param(2, marks=sweep), 3])
def test_predicted_peak_is_the_measured_peak(zero: int, recompute: str) -> None:
    layout = {"dp_shard": 2, "zero": zero, "recompute": recompute, "microbatch_sequences": 4}
    assert abs(_error(2, layout, "fp32", faults=EVERY_STEP)) < 0.01


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_predicted_peak_of_a_pipeline(schedule: str) -> None:
    _check(2, {"pp": 2, "schedule": schedule}, faults=EVERY_STEP)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("start", [0, 1, 3])
def test_every_bit_counts(dtype: torch.dtype, start: int) -> None:
    tensor = torch.randn(5003, dtype=torch.float64).to(dtype)[start:]
    bits = tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    before, seen = checksum(tensor).item(), set()
    for index in (0, 1, 700, 4096, len(bits) - 1):
        for bit in range(8 * tensor.element_size()):
            mask = -(1 << bit) if bit == 8 * tensor.element_size() - 1 else 1 << bit
            bits[index] ^= mask
            seen.add(checksum(tensor).item())
            bits[index] ^= mask
    assert before not in seen
    assert checksum(tensor).item() == before


def test_the_order_of_rows_counts() -> None:
    tensor = torch.randn(8 * 2048)
    assert checksum(tensor) != checksum(tensor.view(8, -1).flip(0).reshape(-1))
    assert checksum(torch.zeros(0)) == 0
