"""Memory-bound operators of the runtime, each run on tensors and recorded: its time, and what it reads and writes."""

from collections.abc import Callable
from typing import cast

import torch

from fourfold.kernels import norm, pointwise
from fourfold.kernels.backend import triton_refuses
from fourfold.model import torch_operations
from fourfold.model.feed_forward import swiglu
from fourfold.model.norm import rms_norm, rms_norm_backward
from fourfold.model.operations import Array, Operations, with_operations
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.recorder.recording import Recording
from fourfold.model.rope import rotate_
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import Weight
from fourfold.model.work import Work

Make = Callable[..., Array]
"""Makes an input of a shape."""
Operator = Callable[[Operations, Make, int, int], Callable[[], object]]
"""Operator on [tokens, hidden]: makes its inputs, and gives the function to call."""


def _norm(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    x, weight = make(tokens, hidden), make(hidden)
    return lambda: rms_norm(ops, x, weight, 1e-5)


def _norm_backward(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    x, grad, scale, weight = (
        make(tokens, hidden),
        make(tokens, hidden),
        make(tokens, 1),
        Weight(make(hidden), make(hidden)),
    )
    return lambda: rms_norm_backward(ops, ops.copy(grad), x, scale, weight)


def _swiglu(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    gate_up = make(tokens, 4 * hidden)
    return lambda: swiglu(ops, gate_up)


def _rope(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    x, cos, sin = make(1, tokens, hidden // 64, 64), make(tokens, 1, 32), make(tokens, 1, 32)
    return lambda: rotate_(ops, x, cos, sin)


def _residual(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    x, y = make(tokens, hidden), make(tokens, hidden)
    return lambda: x + y


OPERATORS: dict[str, Operator] = {
    "norm": _norm,
    "norm backward": _norm_backward,
    "SwiGLU": _swiglu,
    "RoPE": _rope,
    "residual": _residual,
}


def back_ends(device: torch.device) -> tuple[Operations, ...]:
    """Back ends that a run on the device chooses among: the formulas, and on CUDA the Triton kernels where they can run."""
    formulas = cast(Operations, torch_operations)
    if triton_refuses(device) is not None:
        return (formulas,)
    members = {**norm.TRITON.members, **pointwise.TRITON.members}
    return (formulas, with_operations(formulas, members))


def on_device(
    name: str, tokens: int, hidden: int, device: torch.device, dtype: str, ops: Operations | None = None
) -> Callable[[], object]:
    """The operator on tensors. `ops`: by which; None: by the formulas."""

    def make(*shape: int) -> torch.Tensor:
        return torch.full(
            shape, 0.5**0.5, dtype=torch_dtype(dtype), device=device
        )  # cos and sin of one angle: nothing grows

    return OPERATORS[name](ops or cast(Operations, torch_operations), make, tokens, hidden)


def recorded(name: str, tokens: int, hidden: int, is_cuda: bool, dtype: str) -> Work:
    """The operator's kernels."""
    recording = Recording(staging=False)
    ops = RecorderOperations(recording, accelerator=is_cuda)
    run = OPERATORS[name](ops, lambda *shape: ops.outside(shape, dtype), tokens, hidden)
    recording.begin()
    with ops.fused():
        run()
    return recording.recorded()
