"""YaRN (Peng et al. 2023): rotary frequencies, and factors of cosines and of scores, for a longer context."""

import math

import torch
from torch import Tensor

from fourfold.config import ModelConfig


def yarn_frequencies(frequencies: Tensor, model: ModelConfig) -> Tensor:
    """frequencies [d / 2] of unscaled rotary embedding -> those with `model.yarn_scaling`: kept where a position turns more than
    `beta_fast` times within the original context, divided by `factor` where less than `beta_slow`, blended between (eq. 23)."""
    scaling = model.yarn_scaling
    assert scaling is not None
    pairs = frequencies.numel()

    def pair_of(turns: float) -> float:
        wavelengths = math.log(scaling.original_max_position / (turns * 2 * math.pi))
        return 2 * pairs * wavelengths / (2 * math.log(model.rope_theta))

    low = max(math.floor(pair_of(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_of(scaling.beta_slow)), 2 * pairs - 1)
    width = high - low if high != low else 0.001
    slowed = ((torch.arange(pairs, dtype=torch.float32) - low) / width).clamp(0, 1).to(frequencies.dtype)
    return frequencies / scaling.factor * slowed + frequencies * (1 - slowed)


def table_scale(model: ModelConfig) -> float:
    """What cosines and sines are multiplied by."""
    scaling = model.yarn_scaling
    if scaling is None:
        return 1.0
    if scaling.mscale and scaling.mscale_all_dim:
        return _magnitude(scaling.factor, scaling.mscale) / _magnitude(scaling.factor, scaling.mscale_all_dim)
    return _magnitude(scaling.factor, 1.0)


def score_scale(model: ModelConfig) -> float:
    """What latent attention's scores are multiplied by, beside 1/sqrt(head_dim)."""
    scaling = model.yarn_scaling
    if scaling is None or not scaling.mscale_all_dim:
        return 1.0
    return _magnitude(scaling.factor, scaling.mscale_all_dim) ** 2


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
