"""The shared experts: one SwiGLU that every token passes, split over `tp` by columns, then rows; and how its sum is joined."""

from fourfold.model.environment import Environment, Saved
from fourfold.model.kinds.feed_forward import GatedParameters
from fourfold.model.operations import Array
from fourfold.model.parallel import Parallel
from fourfold.model.swiglu import Gate, swiglu, swiglu_again, swiglu_backward_by_blocks
from fourfold.model.tensor_parallel import Arriving, ColumnInput, sum_partial
from fourfold.model.weights import Weight


def shared_forward(
    env: Environment,
    given: list[Arriving],
    w: GatedParameters[Weight],
    saved: Saved,
    activation: Gate = "silu",
    gate: Weight | None = None,
) -> Arriving:
    """This rank's part of the sum over `tp` [T, hidden], begun where tokens are split. `given`: x [T, hidden], taken out of
    the list. `gate` [1, hidden]: the sum is multiplied by the sigmoid of x @ gate^T, which every rank of `tp` computes."""
    ops = env.ops
    x = given.pop().wait()
    gate_up = env.gemms.linear(x, w.gate_up.data)
    opened = None
    if gate is not None:
        opened = ops.linear(x, gate.data)
        with ops.fused():
            opened = opened.sigmoid()
        saved.keep(shared_gate=opened)
    del x
    with ops.fused():
        down_input = swiglu(ops, gate_up, activation)
        if opened is not None:
            down_input.mul_(opened)
    del opened
    saved.keep(shared_gate_up=gate_up, shared_down_input=down_input)
    del gate_up
    return begin_sum(env.gemms.linear(down_input, w.down.data), env.parallel)


def shared_backward(
    env: Environment,
    grad: Arriving,
    normed: Array,
    w: GatedParameters[Weight],
    saved: Saved,
    activation: Gate = "silu",
    gate: Weight | None = None,
) -> Arriving:
    """grad [T, hidden], normed [t, hidden] -> this rank's part of the gradient of normed, its sum over `tp` begun if tokens are
    split (else `join` ends it). Adds the weights' gradients."""
    ops = env.ops
    gate_up, down_input = saved.take("shared_gate_up"), saved.take_if_kept("shared_down_input")
    opened = saved.take("shared_gate") if gate is not None else None
    activated = None
    if down_input is None:
        activated, down_input = swiglu_again(ops, gate_up, activation)
        if opened is not None:
            with ops.fused():
                down_input.mul_(opened)
    full = grad.wait()
    w.down.add_matmul(env.gemms, full, down_input)
    grad_down_input = env.gemms.matmul(full, w.down.data)
    del full, grad
    grad_gate = None
    if opened is not None:
        # the input of down is h sigmoid(s): the gradient of s is that of it, times h sigmoid(s) (1 - sigmoid(s))
        with ops.fused():
            grad_gate = (grad_down_input * down_input).sum(-1, keepdim=True).mul_(1 - opened)
            grad_down_input.mul_(opened)
    del down_input, opened
    given = [grad_down_input, activated]
    del grad_down_input, activated
    swiglu_backward_by_blocks(ops, given, gate_up, activation)
    inputs = ColumnInput(env, w.gate_up, normed)
    grad_input = env.gemms.matmul(gate_up, w.gate_up.data)
    if gate is not None and grad_gate is not None:
        with ops.fused():
            grad_input.addcmul_(grad_gate, gate.data)
    partial = begin_sum(grad_input, env.parallel)
    del grad_input
    inputs.add_matmul(gate_up, (gate, grad_gate) if gate is not None else None)
    return partial


def begin_sum(partial: Array, parallel: Parallel) -> Arriving:
    """Starts the sum over `tp` where tokens are split: partial [T, hidden] -> [t, hidden]. Else leaves it to `join`."""
    return sum_partial(partial, parallel) if parallel.sequence else Arriving(partial)


def join(own: Array, partial: Arriving | None, parallel: Parallel) -> Array:
    """Adds the routed path's output for this rank's tokens, own [n, hidden], and the shared path's part -> sum [t, hidden].

    Where every rank of `tp` has all tokens, the routed rows join the partial sum, and one all-reduce completes both; without
    shared experts they are gathered.
    """
    tp = parallel.tp
    if tp is None or parallel.sequence:
        return own if partial is None else own.add_(partial.wait())
    if partial is None:
        full = own.new_empty((own.shape[0] * tp.size, own.shape[1]))
        tp.all_gather(full, own).wait()
        return full
    full = partial.wait()
    own_tokens(full, parallel).add_(own)
    tp.all_reduce(full).wait()
    return full


def own_tokens(x: Array, parallel: Parallel) -> Array:
    """The tokens that this rank routes: x [t, hidden] -> [n, hidden], a view."""
    if parallel.tp is None or parallel.sequence:
        return x
    return x.view(parallel.tp.size, -1, x.shape[1])[parallel.tp.index]
