"""The kernels of SwiGLU and rotary position embedding, and the cases that they take."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PointwiseCase:
    """A microbatch on one rank: `rows` tokens, `ffn` columns of the gate and as many of up, `heads` of `width` that are rotated."""

    rows: int
    ffn: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device


class TritonPointwise:
    """`model.operations.PointwiseKernels` by Triton."""

    @staticmethod
    def swiglu(gate_up: Tensor) -> Tensor:
        from fourfold.fused import pointwise_launches

        return pointwise_launches.swiglu(gate_up)

    @staticmethod
    def swiglu_backward_(grad: Tensor, gate_up: Tensor) -> None:
        from fourfold.fused import pointwise_launches

        pointwise_launches.swiglu_backward_(grad, gate_up)

    @staticmethod
    def weighted(gate_up: Tensor, weights: Tensor) -> Tensor:
        from fourfold.fused import pointwise_launches

        return pointwise_launches.weighted(gate_up, weights)

    @staticmethod
    def weighted_backward_(grad: Tensor, gate_up: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        from fourfold.fused import pointwise_launches

        return pointwise_launches.weighted_backward_(grad, gate_up, weights)

    @staticmethod
    def rotate_(x: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
        from fourfold.fused import pointwise_launches

        pointwise_launches.rotate(x, x, cos, sin, interleave, inverse)

    @staticmethod
    def rotate_into(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> None:
        from fourfold.fused import pointwise_launches

        pointwise_launches.rotate(x, out, cos, sin, False, inverse)
