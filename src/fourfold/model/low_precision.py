"""Matmuls whose operands are rounded to 8 bits: MXFP8 (OCP Microscaling Formats 1.0, 2023), for the linear layers of blocks.

Every operand is cut into blocks of 32 numbers along the dim that the matmul sums over. A block has one scale, a power of two

    scale = 2^ceil(log2(largest magnitude / largest number of the format)),

and each number becomes the nearest of the format (ties to even) to itself over the scale. Scales are rounded up, so nothing
saturates, and gradients are E4M3 as the rest is (Mishra et al. 2025, arXiv 2506.08027). Operands are multiplied as the numbers
that they now are, and summed in the accumulation format: on every device the rounding is carried out, not the faster matmul.
Embeddings, head, norms, routers, attention itself and routed experts stay in the compute format.
"""

from dataclasses import dataclass
from typing import Protocol

from fourfold.model.operations import Array, Operations

BLOCK = 32
SMALLEST_SCALE = 2.0**-126
LARGEST_POWER = {"e4m3": 8, "e5m2": 15}
"""The exponent of each format's largest number, 1.75 x 2^8 and 1.75 x 2^15."""


@dataclass(frozen=True)
class GemmRecipe:
    """Formats of operands. `gradients`: of the gradients of outputs, `e4m3` or `e5m2`; weights and activations are E4M3."""

    name: str
    gradients: str = "e4m3"


class Gemms(Protocol):
    """The matmuls of a linear layer. `Operations` says what each does."""

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array: ...
    def linear_add(self, residual: Array, x: Array, weight: Array) -> Array: ...
    def matmul(self, a: Array, b: Array) -> Array: ...
    def accumulate(self, grad: Array, grad_output: Array, inputs: Array, fresh: bool) -> None: ...


@dataclass(frozen=True)
class LowPrecisionGemms:
    """Rounds both operands, then multiplies. `matmul` and `accumulate` take the gradient of an output first."""

    ops: Operations
    recipe: GemmRecipe

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        operands = [self._rounded(x, "e4m3"), self._rounded(weight, "e4m3")]
        out = self.ops.linear(*operands)
        operands.clear()
        out = out.to(x.dtype)
        return out if bias is None else out.add_(bias)

    def linear_add(self, residual: Array, x: Array, weight: Array) -> Array:
        return self.linear(x, weight).add_(residual)

    def matmul(self, a: Array, b: Array) -> Array:
        """a [m, k] @ b [k, n] -> [m, n], a the gradient of an output, b a weight."""
        operands = [self._rounded(a, self.recipe.gradients), self._rounded(b.t(), "e4m3").t()]
        out = self.ops.matmul(*operands)
        operands.clear()
        return out.to(a.dtype)

    def accumulate(self, grad: Array, grad_output: Array, inputs: Array, fresh: bool) -> None:
        """Blocks lie along tokens, neighbours of one sequence."""
        left = self._rounded(grad_output.t(), self.recipe.gradients).t()
        self.ops.accumulate(grad, left, self._rounded(inputs.t(), "e4m3").t(), fresh)

    def _rounded(self, x: Array, element: str) -> Array:
        return rounded(self.ops, x, element)


def rounded(ops: Operations, x: Array, element: str) -> Array:
    """x [m, k] as the numbers that MXFP8 keeps of it, blocks along k: [m, k], dense, in the accumulation format."""
    power = LARGEST_POWER[element]
    largest = 1.75 * 2.0**power
    with ops.fused("quantized"):
        blocks = x.unflatten(1, (-1, BLOCK))
        scale = ops.largest_magnitude(blocks)
        ops.round_up_to_power_(scale)
        scale.mul_(2.0**-power).clamp_(SMALLEST_SCALE)
        values = x.new_empty(blocks.shape, dtype=ops.accumulation_dtype(x))
        ops.divide_into(blocks, scale, values)
        values.clamp_(-largest, largest)
        values.copy_(values.to(ops.e4m3 if element == "e4m3" else ops.e5m2))
        values.mul_(scale)
        return values.view(x.shape)
