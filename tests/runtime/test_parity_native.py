"""Every axis gives one process's gradients by the calls that NCCL gets too: here over gloo, on a CUDA device where there is one.

`tests/support/staged_links.py` says what that leaves untested.
"""

from typing import Any

import pytest
import torch

from tests.support.parity_check import check_split
from tests.support.parity_runs import DEEPSEEK_V3, MIXTRAL

DEEP = {"num_layers": 4}
DOCUMENTS = {"document_mask": True}
AXES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "replicas": (2, {"dp_replicate": 2, "dp_shard": 1, "zero": 0}, {}),
    "zero 1": (2, {"dp_shard": 2, "zero": 1}, {}),
    "zero 2": (2, {"dp_shard": 2, "zero": 2}, {}),
    "zero 3": (2, {"dp_shard": 2, "zero": 3, "recompute": "full"}, {}),
    "hsdp, zero 2": (4, {"dp_replicate": 2, "dp_shard": 2, "zero": 2, "microbatch_sequences": 1}, {}),
    "tp": (2, {"tp": 2}, {}),
    "tp, sequences": (2, {"tp": 2, "sequence_parallel": True}, {}),
    "ring": (2, {"cp": 2}, {}),
    "gathered keys": (2, {"cp": 2, "cp_method": "all_gather"}, {"data": DOCUMENTS}),
    "ulysses": (2, {"cp": 2, "cp_method": "ulysses"}, {}),
    "1f1b": (2, {"pp": 2}, {"model": {"tie_embeddings": True}}),
    "interleaved": (2, {"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2}, {"model": DEEP}),
    "zero bubble": (2, {"pp": 2, "schedule": "zb_v", "virtual_stages": 2}, {"model": DEEP}),
    "experts": (2, {"dp_shard": 2, "ep": 2, "zero": 2}, {"model": MIXTRAL}),
    "experts in halves": (2, {"dp_shard": 2, "etp": 2, "zero": 1}, {"model": DEEPSEEK_V3}),
    "experts beside": (2, {"dp_shard": 2, "ep": 2, "overlap_experts": True}, {"model": MIXTRAL}),
    "offloaded": (2, {"dp_shard": 2, "zero": 3, "offload": "activations", "offload_optimizer": True}, {}),
    "pipeline, tp, zero 2": (8, {"pp": 2, "tp": 2, "dp_shard": 2, "zero": 2, "microbatch_sequences": 1}, {}),
}
"""Ranks, layout, other sections."""
MANY = ("pipeline, tp, zero 2", "hsdp, zero 2")


def _check(axis: str, device: str) -> None:
    ranks, layout, sections = AXES[axis]
    check_split(ranks, staged=device, layout={"microbatch_sequences": 3, **layout}, **sections)


@pytest.mark.parametrize(
    "axis", [axis for axis in AXES if axis not in MANY] + [pytest.param(x, marks=pytest.mark.rest) for x in MANY]
)
def test_axes(axis: str) -> None:
    _check(axis, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible")
@pytest.mark.parametrize("axis", AXES)
def test_axes_on_one_device(axis: str) -> None:
    """All ranks on the first device."""
    _check(axis, "cuda:0")
