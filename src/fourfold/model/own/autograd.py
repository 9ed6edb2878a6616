"""A person's own block on torch: its function under autograd, whose graph is kept by its root."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fourfold.config import ModelConfig, UserError
from fourfold.model.own.declare import OwnInputs, own_block
from fourfold.model.weights import Weight


class OwnGraph(NamedTuple):
    """A forward's autograd graph: its leaves, and its root. The root keeps the graph, so the output itself can be freed."""

    inputs: tuple[Tensor, ...]
    leaves: dict[str, Tensor]
    root: GradientEdge


def run_own(
    model: ModelConfig,
    inputs: list[Tensor],
    document_lengths: Sequence[Sequence[int]] | None,
    weights: Mapping[str, Weight],
    keeps: bool,
) -> tuple[Tensor, OwnGraph | None]:
    """`Operations.run_own` on torch."""
    x, cos, sin = inputs
    leaves = {name: weight.data for name, weight in weights.items()}
    if keeps:
        # `.data` has a version of its own: ZeRO-3 refills the memory below a parameter between forward and backward.
        x = x.data.requires_grad_()
        leaves = {name: leaf.data.requires_grad_() for name, leaf in leaves.items()}
    assert model.block is not None
    forward = own_block(model.block).forward
    with torch.set_grad_enabled(keeps):
        out = forward(x, leaves, OwnInputs(cos, sin, document_lengths), model)
        _check(out, x, leaves, model.block, keeps)
        out = out.contiguous()
    if not keeps:
        return out, None
    return out.detach(), OwnGraph((x, cos, sin), leaves, get_gradient_edge(out))


def _check(out: object, x: Tensor, leaves: dict[str, Tensor], block: str, keeps: bool) -> None:
    shape = list(x.shape)
    expected = f"allowed: a tensor {shape} of {x.dtype}, as x"
    if not isinstance(out, Tensor):
        raise UserError(f"model.block = {block!r}: forward gives {out!r:.60}; {expected}; what works: x + ...")
    if out.shape != x.shape or out.dtype != x.dtype:
        given = f"{list(out.shape)} of {out.dtype}"
        raise UserError(f"model.block = {block!r}: forward gives a tensor {given}; {expected}; what works: x + ...")
    if any(out.untyped_storage()._cdata == other.untyped_storage()._cdata for other in (x, *leaves.values())):
        raise UserError(f"model.block = {block!r}: forward gives memory that it was given; what works: x.clone()")
    if keeps and not out.requires_grad:
        raise UserError(f"model.block = {block!r}: forward's output depends on no input or weight; what works: x + ...")


def run_own_backward(given: list[Tensor | OwnGraph], weights: Mapping[str, Weight]) -> Tensor:
    """`Operations.run_own_backward` on torch: a weight's gradient is added to the unit's as soon as it is complete, then freed."""
    grad, graph = given
    given.clear()
    assert isinstance(graph, OwnGraph)
    assert isinstance(grad, Tensor)
    for name, leaf in graph.leaves.items():
        leaf.register_post_accumulate_grad_hook(partial(_deliver, weights[name]))
    x = graph.inputs[0]
    torch.autograd.backward(graph.root, grad, inputs=[x, *graph.leaves.values()])
    return torch.zeros_like(x) if x.grad is None else x.grad


def _deliver(weight: Weight, leaf: Tensor) -> None:
    assert leaf.grad is not None
    weight.add(leaf.grad)
    leaf.grad = None
