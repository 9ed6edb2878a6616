"""Rotary position embedding (Su et al. 2021): pairs of a head's elements turned by angles that grow with the position; the
factors by which YaRN (Peng et al. 2023) and LongRoPE (Ding et al. 2024) scale cosines and scores for a longer context; and factors
of queries by position."""

import math
from dataclasses import dataclass

from fourfold.config.model_config import LongRopeScaling, RopeScaling, YarnScaling
from fourfold.model.operations import Array, Operations


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of `width` elements of a head; of no width, none. `interleave`: pairs are neighbours instead of half of
    `width` apart. `divisor`: of all frequencies."""

    width: int
    theta: float = 10000.0
    scaling: RopeScaling | YarnScaling | LongRopeScaling | None = None
    interleave: bool = False
    divisor: float = 1.0

    @property
    def table_scale(self) -> float:
        """The factor of cosines and sines."""
        scaling = self.scaling
        if isinstance(scaling, LongRopeScaling):
            return _longrope_scale(scaling)
        if not isinstance(scaling, YarnScaling):
            return 1.0
        if scaling.attention_factor is not None:
            return scaling.attention_factor
        if scaling.mscale and scaling.mscale_all_dim:
            return _magnitude(scaling.factor, scaling.mscale) / _magnitude(scaling.factor, scaling.mscale_all_dim)
        return _magnitude(scaling.factor, 1.0)

    @property
    def score_scale(self) -> float:
        """The factor that MLA's scores are multiplied by, beside 1/sqrt(head_dim)."""
        scaling = self.scaling
        if not isinstance(scaling, YarnScaling) or not scaling.mscale_all_dim:
            return 1.0
        return _magnitude(scaling.factor, scaling.mscale_all_dim) ** 2


@dataclass(frozen=True)
class Temperature:
    """The factor of a query at position p, 1 + scale log(1 + floor((p + 1) / floor)): two numbers a position, the factor in the
    compute format and what it is short of."""

    scale: float
    floor: int

    @property
    def width(self) -> int:
        """Numbers of a position, as a rotary embedding has."""
        return 2


Positional = Rope | Temperature
"""A rotary embedding or a temperature: `rope_tables` has the tables that a token reads by its position."""


def rotate_(ops: Operations, x: Array, cos: Array, sin: Array, interleave: bool = False, inverse: bool = False) -> None:
    """Rotates x [batch, seq, heads, d] in place. cos, sin [seq or batch x seq, 1, d / 2]. Pairs lie half of d apart (Hugging
    Face's convention), or `interleave`: side by side; each stays where it stands. `inverse`: by the opposite angle."""
    if ops.pointwise is not None:
        return ops.pointwise.rotate_(x, cos, sin, interleave, inverse)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleave else x.chunk(2, dim=-1)
    if inverse:
        first, second = second, first
    carried = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    ops.multiply_add_into(carried, second, cos, second)


def rotate_into(ops: Operations, x: Array, out: Array, cos: Array, sin: Array, inverse: bool = False) -> None:
    """`rotate_`, to the bit, of x [batch, seq, heads, d] into `out` of its shape: numbers that have to move anyway are read once
    and written once. Pairs lie half of d apart."""
    if ops.pointwise is not None:
        return ops.pointwise.rotate_into(x, out, cos, sin, inverse)
    (first, second), (out_first, out_second) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    if inverse:
        first, second, out_first, out_second = second, first, out_second, out_first
    ops.multiply_into(first, cos, out_first)
    out_first.addcmul_(second, sin, value=-1)
    ops.multiply_into(first, sin, out_second)
    out_second.addcmul_(second, cos)


def _longrope_scale(scaling: LongRopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return math.sqrt(1 + math.log(max(scaling.factor, 1.0)) / math.log(scaling.original_max_position))


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
