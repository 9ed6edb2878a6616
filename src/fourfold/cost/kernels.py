"""How long a kernel runs on a device: matmuls by shape, attention, memory-bound kernels.

A GEMM of [m, k] x [k, n] reaches

    peak x gemm_share x t / (t + gemm_half_tiles x units) x k / (k + gemm_half_inner) x min(1, m / gemm_full_rows),
    t = ceil(m / 128) x ceil(n / 128)

or the memory's speed, whichever is slower: tiles must fill the device's units in whole waves, and each tile's inner loop has a
start and an end. The constants are fitted to published runs by device (`fitted.toml`), or to measured shapes, which a device's own
file states (`fourfold calibrate --device`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from fourfold.hardware import Device
from fourfold.model.work import Attention, Elementwise, ElementwisePart, Gemm

TILE = 128


@dataclass(frozen=True)
class Kernels:
    """A device as kernels see it. Shares are of its peaks; `..._half_...` is the size at which half of the share is left.

    `launch_seconds`: what the device loses between two kernels. `fused`, `fused_parts`, `expert_launches`, `expert_speed`,
    `gradient_bytes`, `merged_passes` and what is said of attention: as in `SoftwareProfile`.
    """

    gemm_share: float = 0.8
    gemm_half_tiles: float = 0.3
    gemm_half_inner: float = 120.0
    gemm_full_rows: float = 128.0
    """Rows that fill a tile."""
    grouped_share: float = 0.85
    """Share of a GEMM's speed that is left where its tokens are divided among experts."""
    low_share: float = 0.9
    """Share of `gemm_share` that low-precision GEMMs reach."""
    fine_share: float = 0.92
    """Share of `low_share` that is left where scales are of blocks (MXFP8, NVFP4, DeepSeek's)."""
    low_bytes: float = 5.0
    """Bytes moved for each element of a GEMM's tokens to bring them into such a format: read, written, written transposed."""
    attention_share: float = 0.6
    attention_backward_share: float = 0.45
    attention_half_keys: float = 300.0
    attention_half_width: float = 25.0
    attention_half_blocks: float = 0.6
    memory_share: float = 0.8
    launch_seconds: float = 2e-6
    fused: float = 0.0
    expert_launches: float = 0.0
    expert_speed: float = 1.0
    gradient_bytes: float = 0.0
    merged_passes: frozenset[ElementwisePart] = frozenset()
    fused_attention: bool = True
    attention_recomputed: bool = False
    attention_dropout: bool = True
    fp32_scores: bool = False
    written_passes: tuple[float, float] = (4.0, 7.0)
    fused_parts: tuple[tuple[ElementwisePart, bool], ...] = ()

    def fused_share(self, part: ElementwisePart) -> float:
        """How far kernels of that part are fused."""
        return next((float(fused) for each, fused in self.fused_parts if each == part), self.fused)


def gemm_seconds(gemm: Gemm, device: Device, kernels: Kernels, dtype: str, element_bytes: int) -> float:
    """`dtype`: the format multiplied in (bf16, fp8, ...). Experts' GEMMs run as one grouped kernel (Gale et al. 2022)."""
    groups = gemm.groups
    rows, inner = expert_sizes(gemm)
    tiles = gemm.batch * groups * -(-rows // TILE) * -(-gemm.columns // TILE)
    share = kernels.gemm_share * (min(1.0, kernels.grouped_share * kernels.expert_speed) if groups > 1 else 1.0)
    share *= tiles / (tiles + kernels.gemm_half_tiles * (device.units or 1))
    share *= inner / (inner + kernels.gemm_half_inner)
    share *= min(1.0, rows / kernels.gemm_full_rows)
    arithmetic = gemm.flops / (device.peak(dtype) * share)
    return max(arithmetic, memory_seconds(gemm_bytes(gemm, kernels, element_bytes), device, kernels))


def expert_sizes(gemm: Gemm) -> tuple[int, int]:
    """Rows and inner dim of one expert's part."""
    if gemm.accumulates:
        return gemm.rows, max(1, gemm.inner // gemm.groups)
    return max(1, gemm.rows // gemm.groups), gemm.inner


def gemm_bytes(gemm: Gemm, kernels: Kernels, element_bytes: int) -> int:
    """Operands once, a byte a number where they are quantized, and the result once; the sum that it is added to is read too, in
    fp32."""
    rows, inner = expert_sizes(gemm)
    adds_itself = gemm.accumulates and not kernels.gradient_bytes
    result = gemm.groups * rows * gemm.columns
    operands = gemm.groups * inner * (rows + gemm.columns) * (1 if gemm.dtype else element_bytes)
    return gemm.batch * (operands + result * (8 if adds_itself else element_bytes))


def _added_bytes(gemm: Gemm, kernels: Kernels) -> float:
    """Bytes moved to add a weight gradient to the sum over microbatches in a kernel of its own."""
    return kernels.gradient_bytes * gemm.groups * gemm.rows * gemm.columns if gemm.accumulates else 0.0


def _converted_bytes(gemm: Gemm, kernels: Kernels) -> float:
    """Bytes moved to bring a GEMM's tokens into the format multiplied in; its weight gradient finds them there."""
    return 0.0 if gemm.accumulates else kernels.low_bytes * gemm.batch * gemm.rows * gemm.inner


DROPOUT_PASSES = 3
"""How often dropout and its mask read or write the scores, either way."""


def attention_seconds(attention: Attention, device: Device, kernels: Kernels, dtype: str, element_bytes: int) -> float:
    """Flash attention (Dao 2023), forward or backward; or GEMMs whose matrix of scores is written."""
    if not kernels.fused_attention:
        return _written_attention_seconds(attention, device, kernels, dtype, element_bytes)
    share = kernels.attention_backward_share if attention.backward else kernels.attention_share
    width = (attention.query_key_dim + attention.value_dim) / 2
    share *= width / (width + kernels.attention_half_width)
    share *= attention.keys / (attention.keys + kernels.attention_half_keys)
    blocks = attention.sequences * attention.heads * -(-attention.queries // TILE)
    share *= blocks / (blocks + kernels.attention_half_blocks * (device.units or 1))
    moved = memory_seconds(attention_bytes(attention, kernels, element_bytes), device, kernels)
    return max(attention.flops / (device.peak(dtype) * share), moved)


def attention_bytes(attention: Attention, kernels: Kernels, element_bytes: int) -> float:
    """Bytes that it moves: queries, keys, values and the output once each, twice in the backward; or the passes over the scores
    that are written."""
    if not kernels.fused_attention:
        scores = attention.sequences * attention.heads * attention.queries * attention.keys
        forward, backward = (each + DROPOUT_PASSES * kernels.attention_dropout for each in kernels.written_passes)
        passes = backward + forward * kernels.attention_recomputed if attention.backward else forward
        return passes * scores * (4 if kernels.fp32_scores else element_bytes)
    tokens = attention.sequences * attention.queries
    heads = attention.heads * attention.query_key_dim + attention.kv_heads * (
        attention.query_key_dim + attention.value_dim
    )
    return tokens * (heads + attention.heads * attention.value_dim) * element_bytes * (2 if attention.backward else 1)


def _written_attention_seconds(
    attention: Attention, device: Device, kernels: Kernels, dtype: str, element_bytes: int
) -> float:
    """The whole square, masked: batched GEMMs, and passes over the scores (Korthikanti et al. 2022, figure 3)."""
    scores = attention.sequences * attention.heads * attention.queries * attention.keys
    flops = 2 * scores * (attention.query_key_dim + attention.value_dim)
    share = kernels.gemm_share * attention.query_key_dim / (attention.query_key_dim + kernels.attention_half_width)
    times = 2 + kernels.attention_recomputed if attention.backward else 1
    moved = memory_seconds(attention_bytes(attention, kernels, element_bytes), device, kernels)
    return times * flops / (device.peak(dtype) * share) + moved


ROUTED_PARTS: tuple[ElementwisePart, ...] = ("sent", "sorted", "experts")


def pass_seconds(item: Elementwise, device: Device, kernels: Kernels) -> float:
    """Bytes over bandwidth, between those of single operators and those of one fused kernel."""
    seconds = memory_seconds(pass_bytes(item, kernels), device, kernels)
    return seconds / kernels.expert_speed if item.part in ROUTED_PARTS else seconds


def pass_bytes(item: Elementwise, kernels: Kernels) -> float:
    """Bytes of it that move: none where another kernel does it on its way."""
    if item.part in kernels.merged_passes:
        return 0.0
    return item.bytes + kernels.fused_share(item.part) * (item.least_bytes - item.bytes)


def memory_seconds(size: float, device: Device, kernels: Kernels) -> float:
    """Reading or writing `size` bytes of the device's memory."""
    return size / (device.memory_bytes_per_second * kernels.memory_share)


def kernel_seconds(
    item: Gemm | Attention | Elementwise,
    device: Device,
    kernels: Kernels,
    gemm_dtype: str,
    dtype: str,
    element_bytes: int,
) -> float:
    """Any kernel, what the device loses at its launch included. `gemm_dtype`: the format of matmuls alone, converted to on the way.
    Matmuls that state a recipe have quantized operands: the kernels that quantize them stand before them."""
    if isinstance(item, Gemm):
        seconds = gemm_seconds(item, device, kernels, "fp8" if item.dtype else gemm_dtype, element_bytes)
        if item.dtype or gemm_dtype != dtype:
            seconds /= kernels.low_share
        if not item.dtype and gemm_dtype != dtype:
            seconds += memory_seconds(_converted_bytes(item, kernels), device, kernels)
        seconds += memory_seconds(_added_bytes(item, kernels), device, kernels)
        return launches(item, kernels) * kernels.launch_seconds + seconds
    if isinstance(item, Attention):
        return kernels.launch_seconds + attention_seconds(item, device, kernels, dtype, element_bytes)
    return launches(item, kernels) * kernels.launch_seconds + pass_seconds(item, device, kernels)


def kernel_bytes(
    item: Gemm | Attention | Elementwise, kernels: Kernels, gemm_dtype: str, dtype: str, element_bytes: int
) -> float:
    """Bytes that a kernel moves, of those that `kernel_seconds` prices."""
    if isinstance(item, Gemm):
        converted = _converted_bytes(item, kernels) if not item.dtype and gemm_dtype != dtype else 0.0
        return gemm_bytes(item, kernels, element_bytes) + converted + _added_bytes(item, kernels)
    if isinstance(item, Attention):
        return attention_bytes(item, kernels, element_bytes)
    return pass_bytes(item, kernels)


@lru_cache(maxsize=8)
def kernel_times(
    device: Device, kernels: Kernels, gemm_dtype: str, dtype: str, element_bytes: int
) -> Callable[[Gemm | Attention | Elementwise], float]:
    """`kernel_seconds` of one device, each kernel's found once: layouts of one model launch much the same ones."""

    def seconds(item: Gemm | Attention | Elementwise) -> float:
        return kernel_seconds(item, device, kernels, gemm_dtype, dtype, element_bytes)

    return lru_cache(maxsize=1 << 16)(seconds)


def launches(item: Gemm | Attention | Elementwise, kernels: Kernels) -> float:
    """How often something is started for it: operators of a pass one by one, or fused to one; experts' GEMMs at once, or one
    by one."""
    if isinstance(item, Gemm):
        return 1.0 + kernels.expert_launches * (item.groups - 1)
    if isinstance(item, Attention):
        return 1.0
    if not item.launches or item.part in kernels.merged_passes:
        return 0.0
    return 1 + (1 - kernels.fused_share(item.part)) * (item.launches - 1)
