"""The experts' own arithmetic: each row through its expert's SwiGLU, and times its routing weight, before or behind it.

Biases: every rank of `etp` adds its part of the down projection's, whose elements it shares out as it does the inner width's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from fourfold.model.operations import Array, Groups, Operations
from fourfold.model.parallel import Group
from fourfold.model.parameter import Parameters
from fourfold.model.swiglu import Gate, swiglu, swiglu_again, swiglu_backward_
from fourfold.model.weights import Weight

T = TypeVar("T")
Scaling = Literal["output", "input"]
"""The side of an expert on which a row's routing weight multiplies."""


@dataclass(frozen=True)
class ExpertParameters(Parameters[T]):
    """gate_up [experts, 2, ffn, hidden], down [experts, hidden, ffn], this rank's experts and its part of ffn; gate_up_bias
    [experts, 2, ffn]; down_bias [experts, this rank's part of hidden]."""

    gate_up: T
    down: T
    gate_up_bias: T | None = None
    down_bias: T | None = None


def experts_forward(
    ops: Operations,
    rows: Array,
    scale: Array,
    w: ExpertParameters[Weight],
    groups: Groups,
    activation: Gate = "silu",
    etp: Group | None = None,
    scaling: Scaling = "output",
) -> tuple[Array, Array]:
    """rows [m, hidden] sorted by expert, scale [m] their routing weights -> (output [m, hidden], gate and up [m, 2
    ffn]).

    The weight scales the gated product, so that its gradient needs no output: nothing of the way back is kept.
    """
    if scaling == "input":
        with ops.fused("experts"):
            rows = ops.copy(rows).mul_(scale.unsqueeze(-1))
    activations = ops.grouped_matmul(rows, w.gate_up.data.flatten(1, 2).transpose(1, 2), groups)
    if w.gate_up_bias is not None:
        with ops.fused():
            activations.add_(ops.take(w.gate_up_bias.data.flatten(1), _experts_of(ops, groups, rows)))
    del rows
    with ops.fused("experts"):
        if scaling == "output":
            down_input = weighted(ops, activations, scale, activation)
        else:
            down_input = swiglu(ops, activations, activation)
    out = ops.grouped_matmul(down_input, w.down.data.transpose(1, 2), groups)
    del down_input
    if w.down_bias is not None:
        with ops.fused():
            added = ops.take(w.down_bias.data, _experts_of(ops, groups, out))
            _own_columns(out, etp).add_(added.mul_(scale.unsqueeze(-1)))
            del added
    return out, activations


def weighted(ops: Operations, gate_up: Array, weights: Array, activation: Gate = "silu") -> Array:
    """The gated product of every row times its weight: gate_up [m, 2 f], weights [m] -> [m, f]."""
    if ops.pointwise is not None and activation == "silu":
        return ops.pointwise.weighted(gate_up, weights)
    return swiglu(ops, gate_up, activation).mul_(weights.unsqueeze(-1))


def experts_backward(
    ops: Operations,
    given: list[Array],
    scale: Array,
    w: ExpertParameters[Weight],
    groups: Groups,
    activation: Gate = "silu",
    etp: Group | None = None,
    scaling: Scaling = "output",
) -> tuple[Array, Array, Callable[[], None]]:
    """Gradients of rows [m, hidden] and scale [m], and the gate and up gradient yet to be added, which can run while the
    others travel. The down gradient is added. `given`: the gradient of the output [m, hidden], rows [m, hidden], and gate and
    up [m, 2 ffn], which are overwritten; taken out of the list."""
    if scaling == "input":
        return _input_scaled_backward(ops, given, scale, w, groups, activation)
    grad, rows, activations = given
    given.clear()
    of_bias = _down_bias_backward(ops, grad, scale, w.down_bias, groups, etp) if w.down_bias is not None else None
    grad_down_input = ops.grouped_matmul(grad, w.down.data, groups)
    if ops.pointwise is not None and activation == "silu":
        with ops.fused("experts"):
            down_input, grad_scale = ops.pointwise.weighted_backward_(grad_down_input, activations, scale)
            del grad_down_input
        add_grouped_matmul(ops, w.down, grad, down_input, groups)
        del down_input, grad
    else:
        column = scale.unsqueeze(-1)
        with ops.fused("experts"):
            activated, down_input = _gated_again(ops, activations, activation)
            grad_scale = (grad_down_input * down_input).sum(-1, dtype=scale.dtype)
            down_input.mul_(column)
        add_grouped_matmul(ops, w.down, grad, down_input, groups)
        del down_input, grad
        with ops.fused("experts"):
            swiglu_backward_(ops, [grad_down_input.mul_(column), activated], activations, activation)
            del grad_down_input, activated
    if of_bias is not None:
        with ops.fused():
            grad_scale.add_(of_bias)
            del of_bias
    if w.gate_up_bias is not None:
        _add_rows(ops, w.gate_up_bias, activations, groups)
    grad_rows = ops.grouped_matmul(activations, w.gate_up.data.flatten(1, 2), groups)
    return grad_rows, grad_scale, lambda: add_grouped_matmul(ops, w.gate_up, activations, rows, groups)


def _input_scaled_backward(
    ops: Operations, given: list[Array], scale: Array, w: ExpertParameters[Weight], groups: Groups, activation: Gate
) -> tuple[Array, Array, Callable[[], None]]:
    grad, rows, activations = given
    given.clear()
    grad_down_input = ops.grouped_matmul(grad, w.down.data, groups)
    activated, down_input = swiglu_again(ops, activations, activation)
    add_grouped_matmul(ops, w.down, grad, down_input, groups)
    del down_input, grad
    with ops.fused("experts"):
        swiglu_backward_(ops, [grad_down_input, activated], activations, activation)
        del grad_down_input, activated
    grad_rows, column = ops.grouped_matmul(activations, w.gate_up.data.flatten(1, 2), groups), scale.unsqueeze(-1)
    with ops.fused("experts"):
        grad_scale = (grad_rows * rows).sum(-1, dtype=scale.dtype)
        grad_rows.mul_(column)
        scaled = ops.copy(rows).mul_(column)
    return grad_rows, grad_scale, lambda: add_grouped_matmul(ops, w.gate_up, activations, scaled, groups)


def _gated_again(ops: Operations, gate_up: Array, activation: Gate) -> tuple[Array | None, Array]:
    """activation(gate), where the backward reads it, and the gated product."""
    if activation != "silu":
        return None, swiglu(ops, gate_up, activation)
    gate, up = gate_up.chunk(2, dim=-1)
    activated = ops.silu(gate)
    return activated, activated * up


def _experts_of(ops: Operations, groups: Groups, rows: Array) -> Array:
    """The expert of every row: rows [m, ...] -> [m]."""
    return ops.repeat(ops.arange(0, groups.number, groups.ends), groups.ends - groups.starts, rows.shape[0])


def _own_columns(x: Array, etp: Group | None) -> Array:
    """The elements of x [m, hidden] whose bias this rank of `etp` has, a view."""
    return x if etp is None else x.chunk(etp.size, dim=-1)[etp.index]


def _down_bias_backward(
    ops: Operations, grad: Array, scale: Array, bias: Weight, groups: Groups, etp: Group | None
) -> Array:
    """Adds the gradient of the bias, and returns that of scale [m] by way of it. grad [m, hidden] of the output."""
    own = _own_columns(grad, etp)
    with ops.fused():
        scaled = ops.upcast(own) * scale.unsqueeze(-1)
    _add_rows(ops, bias, scaled, groups)
    del scaled
    with ops.fused():
        added = ops.take(bias.data, _experts_of(ops, groups, grad))
        return (own * added).sum(-1, dtype=scale.dtype)


def _add_rows(ops: Operations, bias: Weight, values: Array, groups: Groups) -> None:
    """Adds to every expert's bias the sum of its rows: values [m, n]."""
    bias.clear_if_fresh()
    with ops.fused():
        rows = _experts_of(ops, groups, values)
        ops.add_rows(bias.grad.flatten(1), rows, values.to(bias.grad.dtype))
        del rows


def add_grouped_matmul(ops: Operations, weight: Weight, grad_output: Array, inputs: Array, groups: Groups) -> None:
    """weight.grad[e] += grad_output_e^T @ inputs_e, now or deferred. grad_output [m, out], inputs [m, in], weight [experts, ...,
    in] whose middle dims make out. Experts without rows get nothing."""

    def add() -> None:
        grads = weight.grad.view(groups.number, grad_output.shape[1], inputs.shape[1])
        fresh, weight.fresh = weight.fresh, False
        ops.grouped_accumulate(grads, grad_output, inputs, groups, fresh)

    weight.add_later(add)
