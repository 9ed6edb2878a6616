"""The device's matmul of 8-bit operands with scales: `torch.nn.functional.scaled_mm`."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

from fourfold.config import UserError
from fourfold.config.schema import GemmRecipeName
from fourfold.model.low_precision import GemmRecipe, Operand, ScaleTile

SCALE_ROWS, SCALE_COLUMNS = 128, 4
"""Scales of MXFP8 lie in memory in pieces of so many: cuBLAS 12.9, 1D block scaling factors layout."""


def multiplied_on(capability: tuple[int, int], rocm: bool = False) -> tuple[GemmRecipeName, ...]:
    """The recipes that torch has a kernel for on a device of this compute capability. `rocm`: of AMD, whose devices before 9.5
    have another E4M3."""
    if rocm:
        return ("fp8",) if capability >= (9, 5) else ()
    found: list[tuple[bool, GemmRecipeName]] = [
        (capability >= (8, 9), "fp8"),
        (capability == (9, 0), "fp8-block"),
        (capability >= (10, 0), "mxfp8"),
    ]
    return tuple(name for has, name in found if has)


def check_kernels(recipe: GemmRecipe | None, device: torch.device) -> None:
    """Raises `UserError` where the device has no kernel for the matmuls of a run."""
    if recipe is None or not recipe.kernels:
        return
    capability, rocm = torch.cuda.get_device_capability(device), torch.version.hip is not None
    has = multiplied_on(capability, rocm)
    if recipe.name not in has:
        raise UserError(
            f"precision.gemm_dtype = {recipe.name!r}: {torch.cuda.get_device_name(device)} (compute capability "
            f"{capability[0]}.{capability[1]}) has no such matmuls in torch; allowed there: {', '.join(has) or 'none'}; what "
            f'works: leave it out, or precision.compute = "fp32", which carries the rounding out'
        )


def scaled_matmul(left: Operand, right: Operand, name: GemmRecipeName, dtype: torch.dtype) -> Tensor:
    """left [m, k] @ right [n, k]^T -> [m, n] in `dtype`, summed in fp32. `name`: of the recipe."""
    swizzle = SwizzleType.SWIZZLE_32_4_4 if name == "mxfp8" else SwizzleType.NO_SWIZZLE
    result: Tensor = F.scaled_mm(
        left.numbers,
        right.numbers.t(),
        scales_of(left, name),
        _scaling(left.tile),
        scales_of(right, name),
        _scaling(right.tile),
        swizzle_a=swizzle,
        swizzle_b=swizzle,
        output_dtype=dtype,
    )
    return result


def _scaling(tile: ScaleTile) -> ScalingType:
    if tile.columns is None:
        return ScalingType.TensorWise
    if tile.columns == 32:
        return ScalingType.BlockWise1x32
    return ScalingType.BlockWise1x128 if tile.rows == 1 else ScalingType.BlockWise128x128


def scales_of(operand: Operand, name: GemmRecipeName) -> Tensor:
    """The scales as a kernel reads them: one fp32 number; of tiles of a row along columns; of square tiles along k, in fours; of
    MXFP8 as exponents, in pieces of 128 x 4."""
    scales, tile = operand.scales, operand.tile
    if tile.columns is None:
        return scales.reshape(())
    if name == "mxfp8":
        return in_pieces(scales.to(torch.float8_e8m0fnu))
    if tile.rows == 1:
        return scales.t().contiguous().t()
    return F.pad(scales, (0, -scales.shape[1] % 4)).t()


def in_pieces(scales: Tensor) -> Tensor:
    """scales [m, k / 32] of one byte, padded -> flat: number (r, c) of a piece lies at 16 (r mod 32) + 4 (r div 32) + c."""
    rows, columns = scales.shape
    padded = F.pad(scales.view(torch.uint8), (0, -columns % SCALE_COLUMNS, 0, -rows % SCALE_ROWS))
    pieces = padded.view(-1, SCALE_ROWS // 32, 32, padded.shape[1] // SCALE_COLUMNS, SCALE_COLUMNS)
    return pieces.permute(0, 3, 2, 1, 4).reshape(-1).view(scales.dtype)
