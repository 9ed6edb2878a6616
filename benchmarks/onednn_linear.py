"""Linear layers of a plain model by oneDNN, for the kinds of matmuls at which it is faster than MKL here, as fourfold chooses."""

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.kernels.matmul.libraries import faster_by_onednn, measure, processor_clock
from fourfold.model import torch_onednn
from fourfold.model.torch_onednn import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from fourfold.model.work import Gemm


class Linear(torch.autograd.Function):
    """x [..., in] @ weight [out, in]^T, each of its three matmuls by the library that is faster."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kinds: tuple[str, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kinds = kinds
        return by_onednn(x, weight) if FORWARD in kinds else F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad, rows = grads[0].flatten(0, -2), x.flatten(0, -2)
        grad_x = by_onednn(grad, weight.t()) if INPUT_GRADIENT in ctx.kinds else grad @ weight
        grad_weight = by_onednn(grad.t(), rows.t()) if WEIGHT_GRADIENT in ctx.kinds else grad.t() @ rows
        return grad_x.view(x.shape), grad_weight, None


@torch.library.custom_op("benchmark::by_onednn", mutates_args=())
def by_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., in] @ weight [out, in]^T. Inductor takes oneDNN's own operator with frozen weights alone, and calls this as it is."""
    return torch_onednn.linear(x, weight)


@by_onednn.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


class ChosenLinear(nn.Module):
    """An `nn.Linear` without a bias whose matmuls take the faster library."""

    def __init__(self, plain: nn.Linear, kinds: tuple[str, ...]):
        super().__init__()
        self.weight, self.kinds = plain.weight, kinds

    def forward(self, x: Tensor) -> Tensor:
        return Linear.apply(x, self.weight, self.kinds)


def use_faster_library(model: nn.Module, tokens: int) -> None:
    """Replaces every linear layer of the model, which takes `tokens` a step. Its weights stay."""
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    kinds = faster_kinds(Counter((each.out_features, each.in_features) for each in linears), tokens)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, ChosenLinear(child, kinds))


def faster_kinds(weights: Counter[tuple[int, int]], tokens: int) -> tuple[str, ...]:
    """The kinds that oneDNN computes faster. `weights`: outputs and inputs of matrices, and how many there are."""
    matmuls = {
        FORWARD: Counter({Gemm(tokens, out, inner): times for (out, inner), times in weights.items()}),
        INPUT_GRADIENT: Counter({Gemm(tokens, inner, out): times for (out, inner), times in weights.items()}),
        WEIGHT_GRADIENT: Counter({Gemm(out, inner, tokens, True): times for (out, inner), times in weights.items()}),
    }
    return faster_by_onednn(measure(matmuls, processor_clock))
