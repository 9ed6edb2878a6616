"""The experts' own arithmetic: each row through its expert's SwiGLU, times the row's routing weight."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.model.experts.grouped import Groups, add_grouped_product, grouped_product, grouped_product_backward
from fourfold.model.weights import RoutedWeights


def experts_forward(rows: Tensor, scale: Tensor, weights: RoutedWeights, groups: Groups) -> tuple[Tensor, Tensor]:
    """rows [m, hidden] sorted by expert, scale [m] their routing weights -> (output [m, hidden], gate_up [m, 2 ffn]).

    The weight scales the gated product, so that its gradient needs no output: nothing of the way back is kept.
    """
    gate_up = grouped_product(rows, weights.gate_up.data.flatten(1, 2), groups)
    gate, up = gate_up.chunk(2, dim=-1)
    product = F.silu(gate).mul_(up).mul_(scale.unsqueeze(-1))
    return grouped_product(product, weights.down.data, groups), gate_up


def experts_backward(
    grad: Tensor, rows: Tensor, scale: Tensor, gate_up: Tensor, weights: RoutedWeights, groups: Groups
) -> tuple[Tensor, Tensor, Callable[[], None]]:
    """grad [m, hidden] -> gradients of rows [m, hidden] and scale [m], and the gate and up gradient yet to be added, which can
    run while the others travel. The down gradient is added. `gate_up` is overwritten."""
    gate, up = gate_up.chunk(2, dim=-1)
    activated = F.silu(gate)
    product = activated * up
    grad_product = grouped_product_backward(grad, weights.down.data, groups)
    grad_scale = (grad_product * product).sum(-1, dtype=scale.dtype)
    column = scale.unsqueeze(-1)
    add_grouped_product(weights.down, grad, product.mul_(column), groups)
    del product, grad
    gated_backward_(grad_product.mul_(column), gate, up, activated)
    del grad_product, activated
    grad_rows = grouped_product_backward(gate_up, weights.gate_up.data.flatten(1, 2), groups)
    return grad_rows, grad_scale, lambda: add_grouped_product(weights.gate_up, gate_up, rows, groups)


def gated_backward_(grad: Tensor, gate: Tensor, up: Tensor, activated: Tensor) -> None:
    """Puts the gradients of silu(gate) * up in the place of gate and up. grad, activated = silu(gate) [m, ffn]."""
    torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=gate)
    torch.mul(grad, activated, out=up)
