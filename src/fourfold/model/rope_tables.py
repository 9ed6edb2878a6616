"""Tables of cosines and sines for rotary position embedding (Su et al. 2021), with Llama 3's scaling and YaRN."""

import math

import torch
from torch import Tensor

from fourfold.config.model_config import RopeScaling, YarnScaling
from fourfold.model.rope import Rope


def rope_tables(rope: Rope, length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's angles, each [length, width / 2]. Angles are fp32, as in the released models."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rope_frequencies(rope))
    cos, sin = angles.cos().mul_(rope.table_scale), angles.sin().mul_(rope.table_scale)
    return cos.to(device=device, dtype=dtype), sin.to(device=device, dtype=dtype)


def rope_frequencies(rope: Rope, scaled: bool = True) -> Tensor:
    """The angle of a position's step for every pair of elements, fp32 [width / 2]. `scaled`: with its scaling."""
    exponents = torch.arange(0, rope.width, 2, dtype=torch.int64).float() / rope.width
    frequencies = 1.0 / (rope.theta**exponents)
    if scaled and rope.divisor != 1:
        frequencies = frequencies / rope.divisor
    if scaled and isinstance(rope.scaling, RopeScaling):
        frequencies = _scale_llama3(frequencies, rope.scaling)
    if scaled and isinstance(rope.scaling, YarnScaling):
        frequencies = scale_yarn(frequencies, rope.scaling, rope.theta)
    return frequencies


def _scale_llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended linearly in wave count."""
    waves = scaling.original_max_position * frequencies / (2 * math.pi)
    blend = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def scale_yarn(frequencies: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    """frequencies [d / 2] of unscaled rotary embedding -> those with YaRN's: kept where a position turns more than
    `beta_fast` times within the original context, divided by `factor` where less than `beta_slow`, blended between (eq. 23)."""
    pairs = frequencies.numel()

    def pair_of(turns: float) -> float:
        wavelengths = math.log(scaling.original_max_position / (turns * 2 * math.pi))
        return 2 * pairs * wavelengths / (2 * math.log(theta))

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, 2 * pairs - 1)
    width = high - low if high != low else 0.001
    slowed = ((torch.arange(pairs, dtype=torch.float32) - low) / width).clamp(0, 1).to(frequencies.dtype)
    return frequencies / scaling.factor * slowed + frequencies * (1 - slowed)
