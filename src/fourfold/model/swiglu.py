"""Gated linear units (Shazeer 2020): activation(gate) * up and its backward, whole or by blocks of tokens. With SiLU that is
SwiGLU, for which there are kernels, with GELU GeGLU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fourfold.model.operations import Array, Operations

Activation = Literal["silu", "gelu", "gelu_exact"]
"""`gelu`: by its tanh form."""


@dataclass(frozen=True)
class ClampedSwiGLU:
    """gate * sigmoid(alpha gate) * (up + 1), gate at most `limit`, up between -`limit` and `limit` (gpt-oss)."""

    alpha: float
    limit: float

    def gated(self, gate_up: Array) -> Array:
        """gate_up [T, 2 f] -> [T, f]."""
        gate, up = self._clamped(gate_up)
        return (gate * self.alpha).sigmoid().mul_(gate).mul_(up.add_(1))

    def backward_(self, grad: Array, gate_up: Array) -> None:
        """Puts the gradients of gate and up in their place. grad [T, f] of the product is overwritten."""
        full_gate, full_up = gate_up.chunk(2, dim=-1)
        gate, up = self._clamped(gate_up)
        is_clamped = gate < full_gate
        share = (gate * self.alpha).sigmoid()
        steepness = (1 - share).mul_(gate).mul_(self.alpha).add_(1).mul_(share)
        steepness.mul_(up + 1).masked_fill_(is_clamped, 0).mul_(grad)
        full_gate.copy_(steepness)
        del steepness, is_clamped
        is_clamped = (up < full_up) | (full_up < up)
        full_up.copy_(grad.mul_(share).mul_(gate).masked_fill_(is_clamped, 0))

    def _clamped(self, gate_up: Array) -> tuple[Array, Array]:
        gate, up = gate_up.chunk(2, dim=-1)
        return gate.clamp(None, self.limit), up.clamp(-self.limit, self.limit)


Gate = Activation | ClampedSwiGLU
"""The function of gate and up."""

BLOCK_TOKENS = 128
"""Tokens of a block. With 0.5 MB of cache a core, 64 to 256 take 5.0 to 5.3 ms where 1,024 tokens x 1,536 at once take 9.3."""


def activate(ops: Operations, x: Array, activation: Activation) -> Array:
    return _function(ops, activation)(x)


def activate_backward_(ops: Operations, grad: Array, x: Array, activation: Activation) -> None:
    """Puts the gradient of x in its place."""
    functions = {"silu": ops.silu_backward_, "gelu": ops.gelu_backward_, "gelu_exact": ops.gelu_exact_backward_}
    functions[activation](grad, x)


def _function(ops: Operations, activation: Activation) -> Callable[[Array], Array]:
    return {"silu": ops.silu, "gelu": ops.gelu, "gelu_exact": ops.gelu_exact}[activation]


def swiglu(ops: Operations, gate_up: Array, activation: Gate = "silu") -> Array:
    """activation(gate) * up: gate_up [T, 2 f] -> [T, f]."""
    if isinstance(activation, ClampedSwiGLU):
        return activation.gated(gate_up)
    if ops.pointwise is not None and activation == "silu":
        return ops.pointwise.swiglu(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(ops, gate, activation).mul_(up)


def swiglu_again(ops: Operations, gate_up: Array, activation: Gate = "silu") -> tuple[Array | None, Array]:
    """activation(gate), which a backward needs too, and activation(gate) * up. Nothing in place of the first
    where one kernel computes the backward, and on a processor, which makes it again where the backward's other kernels find it in
    the cache."""
    with ops.fused():
        by_kernel = ops.pointwise is not None and activation == "silu"
        if by_kernel or isinstance(activation, ClampedSwiGLU) or not ops.on_accelerator(gate_up):
            return None, swiglu(ops, gate_up, activation)
        gate, up = gate_up.chunk(2, dim=-1)
        activated = activate(ops, gate, activation)
        return activated, activated * up


def swiglu_backward_(ops: Operations, given: list[Array], gate_up: Array, activation: Gate = "silu") -> None:
    """Puts the gradients of gate and up in their place in gate_up [T, 2 f]. `given`: the gradient of the gated product [T, f] and
    activation(gate), None: made again; taken out of the list."""
    grad, activated = given
    given.clear()
    if isinstance(activation, ClampedSwiGLU):
        return activation.backward_(grad, gate_up)
    if ops.pointwise is not None and activation == "silu":
        return ops.pointwise.swiglu_backward_(grad, gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    if activated is None:
        activated = activate(ops, gate, activation)
    activate_backward_(ops, grad * up, gate, activation)
    ops.multiply_into(grad, activated, up)


def swiglu_backward_by_blocks(ops: Operations, given: list[Array], gate_up: Array, activation: Gate = "silu") -> None:
    """`swiglu_backward_`, on a processor for some tokens after the other, whose rows stay in its cache between the kernels."""
    size = gate_up.shape[0] if ops.on_accelerator(gate_up) else BLOCK_TOKENS
    if size >= gate_up.shape[0]:
        with ops.fused():
            swiglu_backward_(ops, given, gate_up, activation)
        return
    grad, _ = given
    given.clear()
    for grad_block, block in ops.repeats(zip(grad.split(size), gate_up.split(size), strict=True), _tokens):
        with ops.fused():
            swiglu_backward_(ops, [grad_block, None], block, activation)


def _tokens(blocks: tuple[Array, Array]) -> int:
    return blocks[0].shape[0]
