"""Durations, transfer time and activations of every stage, with which a compute order is timed and its memory counted."""

import math
from dataclasses import dataclass
from typing import Self

from fourfold.program.instruction import Op


@dataclass(frozen=True)
class StageTimes:
    """Per stage, in any one unit of time: `forward` F, `input_gradient` I, `weight_gradient` W; a full backward takes I + W.

    `transfer`: from the end of an entry on one rank until what it sent is there on another; 0 within a rank.
    `activations`: what a microbatch holds, in any one unit, from the start of its forward to the end of its backward.
    `weight_activations`: how much of that stays from the end of I to the end of W. Left out: all of it, and one unit a stage.
    """

    forward: tuple[float, ...]
    input_gradient: tuple[float, ...]
    weight_gradient: tuple[float, ...]
    transfer: float = 0.0
    activations: tuple[float, ...] = ()
    weight_activations: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.activations:
            object.__setattr__(self, "activations", (1.0,) * len(self.forward))
        if not self.weight_activations:
            object.__setattr__(self, "weight_activations", self.activations)
        columns = (self.input_gradient, self.weight_gradient, self.activations, self.weight_activations)
        if any(len(column) != len(self.forward) for column in columns):
            raise ValueError(f"every column needs one number a stage: {self}")
        if not all(
            math.isfinite(x) and x >= 0 for column in (self.forward, *columns, (self.transfer,)) for x in column
        ):
            raise ValueError(f"times and activations are finite and not negative: {self}")

    @classmethod
    def uniform(
        cls,
        num_stages: int,
        forward: float = 1.0,
        input_gradient: float = 1.0,
        weight_gradient: float = 1.0,
        transfer: float = 0.0,
    ) -> Self:
        """Times that are equal for every stage. By default F = I = W = 1: a full backward takes two forwards."""
        return cls((forward,) * num_stages, (input_gradient,) * num_stages, (weight_gradient,) * num_stages, transfer)

    @property
    def num_stages(self) -> int:
        return len(self.forward)

    def durations(self) -> dict[Op, tuple[float, ...]]:
        """Per op, the time of every stage."""
        backward = tuple(i + w for i, w in zip(self.input_gradient, self.weight_gradient, strict=True))
        return {
            Op.FORWARD: self.forward,
            Op.BACKWARD: backward,
            Op.BACKWARD_INPUT: self.input_gradient,
            Op.BACKWARD_WEIGHT: self.weight_gradient,
        }

    def activation_changes(self) -> dict[Op, tuple[float, ...]]:
        """Per op, what every stage adds to the live activations (at its start) or, negative, frees (at its end)."""
        kept = zip(self.activations, self.weight_activations, strict=True)
        return {
            Op.FORWARD: self.activations,
            Op.BACKWARD: tuple(-a for a in self.activations),
            Op.BACKWARD_INPUT: tuple(w - a for a, w in kept),
            Op.BACKWARD_WEIGHT: tuple(-w for w in self.weight_activations),
        }
