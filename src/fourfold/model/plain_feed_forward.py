"""The feed-forward half of a block without a gate (Vaswani et al. 2017), as one operator: x + activation(norm(x) W_up) W_down."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.config import ModelConfig
from fourfold.model.norm import normalize
from fourfold.model.operators import add_bias, norm_product_backward, row_product
from fourfold.model.parallel import Parallel
from fourfold.model.tensor_parallel import gather_tokens
from fourfold.model.weights import PlainFeedForwardWeights


class PlainFeedForward(torch.autograd.Function):
    """x + activation(up(norm(x))) @ W_down^T, with biases where the weights have them. x [t, hidden] -> the same."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: PlainFeedForwardWeights, model: ModelConfig, parallel: Parallel, keep: bool
    ) -> Tensor:
        normed, statistics = normalize(x, weights, model.norm_eps)
        bias = weights.up_bias.data if weights.up_bias is not None else None
        up = F.linear(gather_tokens(normed, parallel).wait(), weights.up.data, bias)
        ctx.normed = normed if keep else None
        del normed
        product = _activate(up, model.activation)
        ctx.x, ctx.statistics, ctx.up = x, statistics, up
        ctx.weights, ctx.model, ctx.parallel = weights, model, parallel
        ctx.product = product if keep else None
        return row_product(product, weights.down, x, parallel, weights.down_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        weights, model = ctx.weights, ctx.model
        arriving = gather_tokens(grad, ctx.parallel)
        add_bias(weights.down_bias, grad)
        product = ctx.product if ctx.product is not None else _activate(ctx.up, model.activation)
        whole = arriving.wait()
        weights.down.add_product(whole, product)
        del product, arriving
        ctx.product = None
        grad_product = whole @ weights.down.data
        del whole
        _activation_backward_(grad_product, ctx.up, model.activation)
        ctx.grad_product, ctx.up = ctx.up, None
        del grad_product
        grad_x = norm_product_backward(ctx, weights, weights.up, model.norm_eps, weights.up_bias)
        return grad_x.add_(grad), None, None, None, None


def _activate(x: Tensor, activation: str) -> Tensor:
    return F.silu(x) if activation == "silu" else F.gelu(x, approximate="tanh")


def _activation_backward_(grad: Tensor, x: Tensor, activation: str) -> None:
    """Puts the gradient of activation(x) in the place of x, both [T, ffn]."""
    if activation == "silu":
        torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=x)
    else:
        torch.ops.aten.gelu_backward.grad_input(grad, x, approximate="tanh", grad_input=x)
