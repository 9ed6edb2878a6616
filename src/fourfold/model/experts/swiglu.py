"""The experts' own arithmetic: each row through its expert's SwiGLU, times the row's routing weight."""

from collections.abc import Callable

from fourfold.model.operations import Array, Groups, Operations
from fourfold.model.swiglu import swiglu, swiglu_backward_
from fourfold.model.weights import Weight


def experts_forward(
    ops: Operations, rows: Array, scale: Array, gate_up: Weight, down: Weight, groups: Groups
) -> tuple[Array, Array]:
    """rows [m, hidden] sorted by expert, scale [m] their routing weights -> (output [m, hidden], gate and up [m, 2
    ffn]).

    The weight scales the gated product, so that its gradient needs no output: nothing of the way back is kept.
    """
    activations = ops.grouped_matmul(rows, gate_up.data.flatten(1, 2).transpose(1, 2), groups)
    with ops.fused("experts"):
        down_input = weighted(ops, activations, scale)
    return ops.grouped_matmul(down_input, down.data.transpose(1, 2), groups), activations


def weighted(ops: Operations, gate_up: Array, weights: Array) -> Array:
    """silu(gate) * up of every row times its weight: gate_up [m, 2 f], weights [m] -> [m, f]."""
    if ops.pointwise is not None:
        return ops.pointwise.weighted(gate_up, weights)
    return swiglu(ops, gate_up).mul_(weights.unsqueeze(-1))


def experts_backward(
    ops: Operations, given: list[Array], scale: Array, weights: tuple[Weight, Weight], groups: Groups
) -> tuple[Array, Array, Callable[[], None]]:
    """Gradients of rows [m, hidden] and scale [m], and the gate and up gradient yet to be added, which can run while the
    others travel. The down gradient is added. `given`: the gradient of the output [m, hidden], rows [m, hidden], and gate and
    up [m, 2 ffn], which are overwritten; taken out of the list. `weights`: gate and up, down."""
    grad, rows, activations = given
    given.clear()
    gate_up, down = weights
    grad_down_input = ops.grouped_matmul(grad, down.data, groups)
    if ops.pointwise is not None:
        with ops.fused("experts"):
            down_input, grad_scale = ops.pointwise.weighted_backward_(grad_down_input, activations, scale)
            del grad_down_input
        add_grouped_matmul(ops, down, grad, down_input, groups)
        del down_input, grad
    else:
        gate, up = activations.chunk(2, dim=-1)
        column = scale.unsqueeze(-1)
        with ops.fused("experts"):
            activated = ops.silu(gate)
            down_input = activated * up
            grad_scale = (grad_down_input * down_input).sum(-1, dtype=scale.dtype)
            down_input.mul_(column)
        add_grouped_matmul(ops, down, grad, down_input, groups)
        del down_input, grad
        with ops.fused("experts"):
            swiglu_backward_(ops, [grad_down_input.mul_(column), activated], activations)
            del grad_down_input, activated
    grad_rows = ops.grouped_matmul(activations, gate_up.data.flatten(1, 2), groups)
    return grad_rows, grad_scale, lambda: add_grouped_matmul(ops, gate_up, activations, rows, groups)


def add_grouped_matmul(ops: Operations, weight: Weight, grad_output: Array, inputs: Array, groups: Groups) -> None:
    """weight.grad[e] += grad_output_e^T @ inputs_e, now or deferred. grad_output [m, out], inputs [m, in], weight [experts, ...,
    in] whose middle dims make out. Experts without rows get nothing."""

    def add() -> None:
        grads = weight.grad.view(groups.number, grad_output.shape[1], inputs.shape[1])
        fresh, weight.fresh = weight.fresh, False
        ops.grouped_accumulate(grads, grad_output, inputs, groups, fresh)

    weight.add_later(add)
