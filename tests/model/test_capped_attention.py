"""Attention with capped scores equals the full square by autograd, part by part too; its memory is what the recorder says."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.model.capped_attention import attend_capped, attend_capped_backward
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.recorder.recording import Recording
from fourfold.runtime.tracker import MemoryTracker

SCALE, CAP = 0.7, 1.3
SHAPES = {
    "one block": (2, 40, 40, 4, 2, 6, 6),
    "three blocks": (2, 300, 300, 2, 2, 4, 4),
    "values of another width": (1, 130, 130, 3, 1, 4, 6),
    "one token": (3, 1, 1, 2, 1, 2, 2),
}
"""Rows, queries, keys, heads, heads of keys, their width, the width of values."""


def given(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    rows, queries, keys, heads, kv_heads, width, value = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((queries, heads, width), (keys, kv_heads, width), (keys, kv_heads, value))
    q, k, v = (torch.randn(rows, *each, generator=generator, dtype=torch.float64).to(dtype) for each in sizes)
    return q, k, v


def square(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the masked square."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = CAP * torch.tanh(torch.einsum("bqhd,bkhd->bqhk", q, k) * SCALE / CAP)
    if causal:
        hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
    return torch.einsum("bqhk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_output_and_gradients_are_those_of_the_square(name: str, causal: bool) -> None:
    q, k, v = leaves = [x.requires_grad_() for x in given(SHAPES[name])]
    wanted, wanted_lse = square(q, k, v, causal)
    grad = torch.randn(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad(wanted, leaves, grad)
    with torch.no_grad():
        out, lse = attend_capped(q, k, v, causal, SCALE, CAP)
        ours = attend_capped_backward(grad, q, k, v, out, lse, causal, SCALE, CAP)
    for found, right in zip((out, lse, *ours), (wanted, wanted_lse, *gradients), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-12)


def test_sums_of_halves_are_in_fp32() -> None:
    q, k, v = given(SHAPES["one block"], torch.bfloat16)
    out, lse = attend_capped(q, k, v, True, SCALE, CAP)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(lse.double(), square(q.double(), k.double(), v.double(), True)[1], rtol=1e-5, atol=1e-5)
    grads = attend_capped_backward(out, q, k, v, out, lse, True, SCALE, CAP)
    assert {x.dtype for x in grads} == {torch.bfloat16}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["three blocks", "values of another width"])
def test_memory_is_what_the_recorder_says(name: str, compute: str, causal: bool) -> None:
    q, k, v = given(SHAPES[name], {"fp32": torch.float32, "bf16": torch.bfloat16}[compute])
    recording = Recording(staging=False)
    ops: Any = RecorderOperations(recording)
    shapes = [ops.outside(x.shape, compute) for x in (q, k, v)]
    out, lse = attend_capped(q, k, v, causal, SCALE, CAP)
    others = [ops.outside(out.shape, compute), ops.outside(lse.shape, "fp32")]
    calls = (
        (lambda: attend_capped(q, k, v, causal, SCALE, CAP), lambda: ops.attend_capped(*shapes, causal, SCALE, CAP)),
        (
            lambda: attend_capped_backward(out, q, k, v, out, lse, causal, SCALE, CAP),
            lambda: ops.attend_capped_backward(others[0], *shapes, *others, causal, SCALE, CAP),
        ),
    )
    for run, record in calls:
        tracker = MemoryTracker()
        for tensor in (q, k, v, out, lse):
            tracker.watch(tensor)
        base = tracker.live_bytes
        with tracker:
            kept: Any = run()
        recording.begin()
        declared: Any = record()
        assert recording.peak == tracker.peak_bytes - base
        assert recording.live == tracker.live_bytes - base
        del kept, declared
