"""fp32 numbers in two halves of 16 bits: the nearest bf16, and what is missing from it. Nothing is lost.

A bf16 number is the upper half of an fp32 number. Rounded to the nearest (ties away from zero), it differs from the number by a
signed count of units in the last place that fits 16 bits: number = (weight << 16) + remainder, as 32-bit integers.
"""

import torch
from torch import Tensor

WEIGHTS, REMAINDER = "weights", "remainder"
"""The names of both halves among the states of a unit, in memory and in checkpoints."""
_HALF = 0x8000


def join_halves(weights: Tensor, remainders: Tensor) -> Tensor:
    """The numbers [n], fp32, of `weights` [n], bf16, and `remainders` [n], int16; in new memory."""
    bits = weights.view(torch.int16).to(torch.int32)
    return bits.bitwise_left_shift_(16).add_(remainders).view(torch.float32)


def split_halves(numbers: Tensor, weights: Tensor, remainders: Tensor) -> None:
    """Writes the halves of `numbers` [n], fp32, to `weights` [n], bf16, and `remainders` [n], int16. Allocates 4 n bytes."""
    bits = numbers.view(torch.int32)
    upper = (bits + _HALF).bitwise_right_shift_(16)
    weights.view(torch.int16).copy_(upper)
    remainders.copy_(torch.sub(bits, upper.bitwise_left_shift_(16), out=upper))
