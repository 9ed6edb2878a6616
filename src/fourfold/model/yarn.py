"""YaRN (Peng et al. 2023): factors of cosines and of scores for a longer context."""

import math

from fourfold.config import ModelConfig


def table_scale(model: ModelConfig) -> float:
    """What cosines and sines are multiplied by."""
    scaling = model.yarn_scaling
    if scaling is None:
        return 1.0
    if scaling.mscale and scaling.mscale_all_dim:
        return _magnitude(scaling.factor, scaling.mscale) / _magnitude(scaling.factor, scaling.mscale_all_dim)
    return _magnitude(scaling.factor, 1.0)


def score_scale(model: ModelConfig) -> float:
    """The factor that MLA's scores are multiplied by, beside 1/sqrt(head_dim)."""
    scaling = model.yarn_scaling
    if scaling is None or not scaling.mscale_all_dim:
        return 1.0
    return _magnitude(scaling.factor, scaling.mscale_all_dim) ** 2


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
