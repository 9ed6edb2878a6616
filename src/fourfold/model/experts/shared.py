"""The shared experts: one SwiGLU that every token passes, split over `tp` by columns, then rows; and how its sum is joined."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fourfold.model.experts.swiglu import gated_backward_
from fourfold.model.parallel import Parallel
from fourfold.model.tensor_parallel import Arriving, ColumnInput, sum_partial
from fourfold.model.weights import FeedForwardWeights


@dataclass
class SharedState:
    """Kept for backward: gate_up [T, 2 ffn] and, unless it is rebuilt, product [T, ffn], of this rank's part of ffn."""

    gate_up: Tensor
    product: Tensor | None


def shared_forward(x: Arriving, weights: FeedForwardWeights, keep: bool) -> tuple[Tensor, SharedState]:
    """x [T, hidden] -> this rank's part of the sum over `tp` [T, hidden]."""
    gate_up = F.linear(x.wait(), weights.gate_up.data)
    gate, up = gate_up.chunk(2, dim=-1)
    product = F.silu(gate).mul_(up)
    return F.linear(product, weights.down.data), SharedState(gate_up, product if keep else None)


def shared_backward(
    grad: Arriving, state: SharedState, normed: Tensor, weights: FeedForwardWeights, parallel: Parallel
) -> Arriving:
    """grad [T, hidden], normed [t, hidden] -> this rank's part of the gradient of normed, its sum over `tp` begun if tokens are
    split (else `join` ends it). Adds the weights' gradients."""
    gate, up = state.gate_up.chunk(2, dim=-1)
    activated = F.silu(gate)
    product = state.product if state.product is not None else activated * up
    whole = grad.wait()
    weights.down.add_product(whole, product)
    del product
    state.product = None
    grad_product = whole @ weights.down.data
    del whole, grad
    gated_backward_(grad_product, gate, up, activated)
    del grad_product, activated
    inputs = ColumnInput(weights.gate_up, normed, parallel)
    partial = begin_sum(state.gate_up @ weights.gate_up.data, parallel)
    inputs.add_product(state.gate_up)
    return partial


def begin_sum(partial: Tensor, parallel: Parallel) -> Arriving:
    """Starts the sum over `tp` where tokens are split: partial [T, hidden] -> [t, hidden]. Else leaves it to `join`."""
    return sum_partial(partial, parallel) if parallel.sequence else Arriving(partial)


def join(own: Tensor, partial: Arriving | None, parallel: Parallel) -> Tensor:
    """What the routed path has for this rank's tokens, own [n, hidden], and the shared path's part -> their sum [t, hidden].

    Where every rank of `tp` has all tokens, the routed rows join the partial sum, and one all-reduce completes both; without
    shared experts they are gathered.
    """
    tp = parallel.tp
    if tp is None or parallel.sequence:
        return own if partial is None else own.add_(partial.wait())
    if partial is None:
        whole = own.new_empty((own.shape[0] * tp.size, own.shape[1]))
        tp.all_gather(whole, own).wait()
        return whole
    whole = partial.wait()
    own_tokens(whole, parallel).add_(own)
    tp.all_reduce(whole).wait()
    return whole


def own_tokens(x: Tensor, parallel: Parallel) -> Tensor:
    """The tokens that this rank routes: x [t, hidden] -> [n, hidden], a view."""
    if parallel.tp is None or parallel.sequence:
        return x
    return x.view(parallel.tp.size, -1, x.shape[1])[parallel.tp.index]
