"""Tables of cosines and sines for rotary position embedding (Su et al. 2021), with the scalings of its frequencies.

Frequencies are transformers' to the bit: they are fp32 there whatever the model's format, so the order of operations shows in fp64.
"""

import math

import torch
from torch import Tensor

from fourfold.config.model_config import LongRopeScaling, RopeScaling, YarnScaling
from fourfold.model.rope import Positional, Rope, Temperature


def rope_tables(rope: Positional, length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's angles in sequences of `length` tokens, each [length, width / 2]. Angles are fp32, as in the
    released models. A temperature has its factor in two parts, as `Temperature` says."""
    if isinstance(rope, Temperature):
        cos, sin = _temperatures(rope, length, dtype)
    else:
        angles = torch.outer(torch.arange(length, dtype=torch.float32), rope_frequencies(rope, length))
        cos, sin = angles.cos().mul_(rope.table_scale), angles.sin().mul_(rope.table_scale)
    return cos.to(device=device, dtype=dtype), sin.to(device=device, dtype=dtype)


def _temperatures(temperature: Temperature, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    positions = torch.arange(length, dtype=torch.float32).unsqueeze(-1)
    factor = torch.log1p(torch.floor((positions + 1.0) / temperature.floor)) * temperature.scale + 1.0
    rounded = factor.to(dtype)
    return rounded, factor - rounded.to(factor.dtype)


def rope_frequencies(rope: Rope, length: int = 1, scaled: bool = True) -> Tensor:
    """The angle of a position's step for every pair of elements in sequences of `length` tokens, fp32 [width / 2]. `scaled`: with
    its scaling."""
    exponents = torch.arange(0, rope.width, 2, dtype=torch.int64).float() / rope.width
    periods = rope.theta**exponents
    if scaled and isinstance(rope.scaling, YarnScaling):
        return scale_yarn(periods, rope.scaling, rope.theta)
    if scaled and isinstance(rope.scaling, LongRopeScaling):
        long = length > rope.scaling.original_max_position
        return 1.0 / (torch.tensor(rope.scaling.long_factor if long else rope.scaling.short_factor) * periods)
    frequencies = 1.0 / periods
    if scaled and rope.divisor != 1:
        frequencies = frequencies / rope.divisor
    if scaled and isinstance(rope.scaling, RopeScaling):
        frequencies = _scale_llama3(frequencies, rope.scaling)
    return frequencies


def _scale_llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended linearly in wave count."""
    waves = scaling.original_max_position / (2 * math.pi / frequencies)
    blended = scaling.high_freq_factor - scaling.low_freq_factor
    blend = waves >= scaling.low_freq_factor if blended == 0 else (waves - scaling.low_freq_factor) / blended
    blend = blend.to(frequencies.dtype).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def scale_yarn(periods: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    """periods [d / 2], one over the frequencies of unscaled rotary embedding -> frequencies with YaRN's: kept where a position
    turns more than `beta_fast` times within the original context, divided by `factor` where less than `beta_slow`, blended
    between (eq. 23)."""
    pairs = periods.numel()

    def pair_of(turns: float) -> float:
        wavelengths = math.log(scaling.original_max_position / (turns * 2 * math.pi))
        return 2 * pairs * wavelengths / (2 * math.log(theta))

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, 2 * pairs - 1)
    width = high - low if high != low else 0.001
    kept = 1 - ((torch.arange(pairs, dtype=torch.float32) - low) / width).clamp(0, 1)
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept
