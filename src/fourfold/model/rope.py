"""Rotary position embedding (Su et al. 2021) in the half-split convention of Hugging Face, with Llama 3's scaling."""

import math

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.yarn import table_scale, yarn_frequencies


def rotated_width(model: ModelConfig) -> int:
    """Elements of a head's query and key that are rotated."""
    if model.positions == "learned":
        return 0
    return model.rope_head_dim if model.is_latent else model.head_dim


def rope_tables(model: ModelConfig, length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's angles, each [length, width / 2], width the part of a head that is rotated: all of it, or
    `rope_head_dim` of latent attention, nothing where positions are learned. Angles are fp32, as in the released models."""
    width = rotated_width(model)
    exponents = torch.arange(0, width, 2, dtype=torch.int64).float() / width
    frequencies = 1.0 / (model.rope_theta**exponents)
    if model.rope_scaling is not None:
        frequencies = _scale_llama3(frequencies, model)
    if model.yarn_scaling is not None:
        frequencies = yarn_frequencies(frequencies, model)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    scale = table_scale(model)
    cos, sin = angles.cos().mul_(scale), angles.sin().mul_(scale)
    return cos.to(device=device, dtype=dtype), sin.to(device=device, dtype=dtype)


def _scale_llama3(frequencies: Tensor, model: ModelConfig) -> Tensor:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended linearly in wave count."""
    scaling = model.rope_scaling
    assert scaling is not None
    waves = scaling.original_max_position * frequencies / (2 * math.pi)
    blend = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def rotate_(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> None:
    """Rotates x [batch, seq, heads, head_dim] in place. cos, sin [seq or batch x seq, 1, head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    sign = -1 if inverse else 1
    carried = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-sign)
    second.mul_(cos).add_(carried, alpha=sign)
