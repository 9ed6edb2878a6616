"""Matmuls whose operands are brought into 8 bits, for the linear layers of blocks. Three recipes say which numbers share a scale:

    fp8         all of an operand: one scale for a microbatch's tensor, over all ranks of tp and cp that hold parts of it
    fp8-block   128 neighbours of an activation or gradient, 128 x 128 numbers of a weight (DeepSeek-AI 2024, section 3.3)
    mxfp8       32 neighbours (OCP Microscaling Formats 1.0, 2023)

Neighbours lie along the dim that the matmul sums over. Each scale is a power of two,

    scale = 2^ceil(log2(largest magnitude / largest number of the format)),

and each number becomes the nearest of the format (ties to even) to itself over the scale. Scales are rounded up, so nothing
saturates (Mishra et al. 2025, arXiv 2506.08027). With `kernels` the device's scaled matmul takes the 8-bit operands. Else the
rounding is carried out and operands are multiplied as the numbers that they now are, in the accumulation format. Powers of two
make both the same but for the order of sums. Embeddings, head, norms, routers, attention itself and routed experts stay in the
compute format.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fourfold.config.schema import Element, GemmRecipeName
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Group

MULTIPLES: dict[GemmRecipeName, int] = {"fp8": 16, "fp8-block": 128, "mxfp8": 32}
"""Sizes on a rank are multiples of this: numbers that share a scale, or that a kernel takes at once."""
GRADIENTS: dict[GemmRecipeName, Element] = {"fp8": "e5m2", "fp8-block": "e4m3", "mxfp8": "e4m3"}
"""Formats of gradients where none is stated (Micikevicius et al. 2022; DeepSeek-AI 2024; Mishra et al. 2025)."""
SMALLEST_SCALE = 2.0**-126
LARGEST_POWER: dict[Element, int] = {"e4m3": 8, "e5m2": 15}
"""The exponent of each format's largest number, 1.75 x 2^8 and 1.75 x 2^15."""


@dataclass(frozen=True)
class GemmRecipe:
    """Formats of operands. `gradients`: of the gradients of outputs; weights and activations are E4M3. `kernels`: whether the
    device multiplies 8-bit operands."""

    name: GemmRecipeName
    gradients: Element = "e4m3"
    kernels: bool = False

    @property
    def multiple(self) -> int:
        return MULTIPLES[self.name]


class ScaleTile(NamedTuple):
    """Numbers that share a scale: `columns` of each of `rows`. None: all of them."""

    rows: int | None
    columns: int | None


BLOCK_OF_32 = ScaleTile(1, 32)


class Role(NamedTuple):
    """One side of a matmul: its format, and whether it is a weight."""

    element: Element
    is_weight: bool = False


class Operand(NamedTuple):
    """Numbers [m, k] in 8 bits, in rows of k that the matmul sums over, and the scale of every tile [m / rows, k / columns]."""

    numbers: Array
    scales: Array
    tile: ScaleTile


class Gemms(Protocol):
    """The matmuls of a linear layer. `Operations` says what each does."""

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array: ...
    def linear_add(self, residual: Array, x: Array, weight: Array) -> Array: ...
    def matmul(self, a: Array, b: Array) -> Array: ...
    def accumulate(self, grad: Array, grad_output: Array, inputs: Array, fresh: bool) -> None: ...


ACTIVATION, WEIGHT = Role("e4m3"), Role("e4m3", is_weight=True)


@dataclass(frozen=True)
class LowPrecisionGemms:
    """Quantizes both operands, then multiplies. `matmul` and `accumulate` take the gradient of an output first. `group`: the ranks
    of tp and cp, which have one scale for what they hold parts of."""

    ops: Operations
    recipe: GemmRecipe
    group: Group | None = None

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        out = self._multiply([x, weight], (ACTIVATION, WEIGHT))
        return out if bias is None else out.add_(bias)

    def linear_add(self, residual: Array, x: Array, weight: Array) -> Array:
        return self.linear(x, weight).add_(residual)

    def matmul(self, a: Array, b: Array) -> Array:
        """a [m, k] @ b [k, n] -> [m, n], a the gradient of an output, b a weight."""
        return self._multiply([a, b.t()], (Role(self.recipe.gradients), WEIGHT))

    def accumulate(self, grad: Array, grad_output: Array, inputs: Array, fresh: bool) -> None:
        """Tiles lie along tokens, neighbours of one sequence."""
        left, right = self._operands((grad_output.t(), inputs.t()), (Role(self.recipe.gradients), ACTIVATION))
        if not self.recipe.kernels:
            self.ops.accumulate(grad, left.t(), right.t(), fresh)
            return
        update = self.ops.scaled_matmul(left, right, self.recipe.name, grad.dtype)
        grad.copy_(update) if fresh else grad.add_(update)

    def _multiply(self, given: list[Array], roles: tuple[Role, Role]) -> Array:
        """given: left [m, k], right [n, k], taken out of the list -> left @ right^T [m, n] in the format of left."""
        dtype = given[0].dtype
        operands = self._operands((given[0], given[1]), roles)
        given.clear()
        if self.recipe.kernels:
            return self.ops.scaled_matmul(operands[0], operands[1], self.recipe.name, dtype)
        out = self.ops.linear(*operands)
        operands.clear()
        return out.to(dtype)

    def _operands(self, given: tuple[Array, Array], roles: tuple[Role, Role]) -> list[Array]:
        if self.recipe.name == "fp8":
            scales = common_scales(self.ops, given, roles, self.group)
        else:
            scales = (None, None)
        return [self._operand(*each) for each in zip(given, roles, scales, strict=True)]

    def _operand(self, x: Array, role: Role, scales: Array | None) -> Array:
        """An `Operand` for a kernel, or x [m, k] as the numbers that are left of it, dense, in the accumulation format."""
        size = self.recipe.multiple
        tile = ScaleTile(None, None) if scales is not None else ScaleTile(1, size)
        if self.recipe.name == "fp8-block" and role.is_weight:
            tile = ScaleTile(size, size)
        if not self.recipe.kernels:
            return rounded(self.ops, x, role.element, tile, scales)
        with self.ops.fused("quantized"):
            return quantize(self.ops, x, role.element, tile, scales, x.dtype)


def rounded(
    ops: Operations, x: Array, element: Element, tile: ScaleTile = BLOCK_OF_32, scales: Array | None = None
) -> Array:
    """x [m, k] as the numbers that its format keeps of it: [m, k], dense, in the accumulation format."""
    dtype = ops.accumulation_dtype(x)
    with ops.fused("quantized"):
        numbers, scales, tile = quantize(ops, x, element, tile, scales, dtype)
        values = _tiled(numbers.to(dtype), tile)
        return values.mul_(_spread(scales, tile)).view(x.shape)


def quantize(ops: Operations, x: Array, element: Element, tile: ScaleTile, scales: Array | None, dtype: str) -> Operand:
    """x [m, k] in 8 bits. `scales`: None, they are made here; `dtype`: of the quotients before they are rounded."""
    tiles = _tiled(x, tile)
    if scales is None:
        largest = ops.largest_magnitude(tiles)
        if tile.rows != 1:
            largest = largest.amax(1, keepdim=True)
        scales = largest.view(*largest.shape[:: 1 if tile.rows == 1 else 2][:2])
        to_scales_(ops, scales, element)
    values = x.new_empty(tiles.shape, dtype=dtype)
    ops.divide_into(tiles, _spread(scales, tile), values)
    return Operand(ops.eight_bits(values, element).view(x.shape), scales, tile)


def common_scales(
    ops: Operations, given: tuple[Array, Array], roles: tuple[Role, Role], group: Group | None
) -> tuple[Array, Array]:
    """One scale [1, 1] for each of two operands, the same on every rank of the group: the largest magnitudes of both travel
    together."""
    with ops.fused("quantized"):
        largest = ops.concatenate([ops.largest_magnitude(x).amax(0, keepdim=True) for x in given], dim=1)
    if group is not None:
        every = largest.new_empty((group.size, 2))
        group.all_gather(every, largest).wait()
        largest = every
    with ops.fused("quantized"):
        largest = largest.amax(0, keepdim=True)
        scales = largest[:, :1], ops.copy(largest[:, 1:])  # cuBLAS reads a scale at multiples of 16 bytes alone
        for scale, role in zip(scales, roles, strict=True):
            to_scales_(ops, scale, role.element)
    return scales


def to_scales_(ops: Operations, largest: Array, element: Element) -> None:
    """Puts scales in the place of the largest magnitudes."""
    ops.round_up_to_power_(largest)
    largest.mul_(2.0 ** -LARGEST_POWER[element]).clamp_(SMALLEST_SCALE)


def _tiled(x: Array, tile: ScaleTile) -> Array:
    """x [m, k] -> [m, k / columns, columns], or with more rows in a tile [m / rows, rows, k / columns, columns]; x itself where all
    share a scale."""
    if tile.columns is None:
        return x
    tiles = x.unflatten(1, (-1, tile.columns))
    return tiles if tile.rows == 1 else tiles.unflatten(0, (-1, tile.rows))


def _spread(scales: Array, tile: ScaleTile) -> Array:
    """Scales in the shape of `_tiled`."""
    if tile.columns is None:
        return scales
    return scales.unsqueeze(-1) if tile.rows == 1 else scales.unsqueeze(1).unsqueeze(-1)
