"""The dense feed-forward half of a block: x + SwiGLU(norm(x)) (Shazeer 2020), or without a gate (Vaswani et al. 2017).

Symbols: T tokens of a microbatch, t those whose hidden states this rank has, f this rank's part of ffn.
"""

from fourfold.model.environment import Environment, Saved
from fourfold.model.norm import normalize
from fourfold.model.operations import Array, Operations
from fourfold.model.tensor_parallel import add_bias, gather_tokens, norm_linear_backward, row_parallel
from fourfold.model.weights import FeedForwardWeights, PlainFeedForwardWeights

BLOCK_TOKENS = 128
"""Tokens of a block. With 0.5 MB of cache a core, 64 to 256 take 5.0 to 5.3 ms where 1,024 tokens x 1,536 at once take 9.3."""


def gated_forward(
    env: Environment, x: Array, w: FeedForwardWeights, saved: Saved, residual: Array | None = None
) -> Array:
    """x + (silu(gate) * up) @ W_down^T. x [t, hidden] -> the same. `residual` [t, hidden]: is first added to x, in its place."""
    ops = env.ops
    normed, statistics = normalize(ops, x, w, env.model.norm_eps, residual)
    saved.keep(x_2=x, statistics_2=statistics, normed_2=normed)
    gate_up = env.gemms.linear(gather_tokens(normed, env.parallel).wait(), w.gate_up.data)  # [T, 2 f]
    saved.keep(gate_up=gate_up)
    del normed, statistics
    with ops.fused():
        down_input = swiglu(ops, gate_up)
    del gate_up
    saved.keep(down_input=down_input)
    return row_parallel(env, down_input, w.down, x)


def gated_backward(env: Environment, grad: Array, w: FeedForwardWeights, saved: Saved) -> Array:
    """grad [t, hidden] -> the gradient of x; adds the weights' gradients."""
    ops = env.ops
    arriving = gather_tokens(grad, env.parallel)
    gate_up, down_input = saved.take("gate_up"), saved.take_if_kept("down_input")
    activated = None
    if down_input is None:
        activated, down_input = swiglu_again(ops, gate_up)
    full = arriving.wait()
    w.down.add_matmul(env.gemms, full, down_input)
    del down_input, arriving
    grad_down_input = env.gemms.matmul(full, w.down.data)
    del full
    given = [grad_down_input, activated]
    del grad_down_input, activated
    swiglu_backward_by_blocks(ops, given, gate_up)
    grads = [gate_up, grad]
    del gate_up
    return norm_linear_backward(env, w, w.gate_up, None, saved, "2", saved.take("x_2"), grads)


def swiglu(ops: Operations, gate_up: Array) -> Array:
    """silu(gate) * up: gate_up [T, 2 f] -> [T, f]."""
    if ops.pointwise is not None:
        return ops.pointwise.swiglu(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return ops.silu(gate).mul_(up)


def swiglu_again(ops: Operations, gate_up: Array) -> tuple[Array | None, Array]:
    """silu(gate), which a backward needs too, and silu(gate) * up. Nothing in place of the first
    where one kernel computes the backward, and on a processor, which makes it again where the backward's other kernels find it in
    the cache."""
    with ops.fused():
        if ops.pointwise is not None or not ops.on_accelerator(gate_up):
            return None, swiglu(ops, gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        activated = ops.silu(gate)
        return activated, activated * up


def swiglu_backward_(ops: Operations, given: list[Array], gate_up: Array) -> None:
    """Puts the gradients of gate and up in their place in gate_up [T, 2 f]. `given`: the gradient of the gated product [T, f] and
    silu(gate), None: made again; taken out of the list."""
    grad, activated = given
    given.clear()
    if ops.pointwise is not None:
        return ops.pointwise.swiglu_backward_(grad, gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    if activated is None:
        activated = ops.silu(gate)
    ops.silu_backward_(grad * up, gate)
    ops.multiply_into(grad, activated, up)


def swiglu_backward_by_blocks(ops: Operations, given: list[Array], gate_up: Array) -> None:
    """`swiglu_backward_`, on a processor for some tokens after the other, whose rows stay in its cache between the kernels."""
    size = gate_up.shape[0] if ops.on_accelerator(gate_up) else BLOCK_TOKENS
    if size >= gate_up.shape[0]:
        with ops.fused():
            swiglu_backward_(ops, given, gate_up)
        return
    grad, _ = given
    given.clear()
    for grad_block, block in ops.repeats(zip(grad.split(size), gate_up.split(size), strict=True), _tokens):
        with ops.fused():
            swiglu_backward_(ops, [grad_block, None], block)


def _tokens(blocks: tuple[Array, Array]) -> int:
    return blocks[0].shape[0]


def plain_forward(
    env: Environment, x: Array, w: PlainFeedForwardWeights, saved: Saved, residual: Array | None = None
) -> Array:
    """x + activation(norm(x) @ W_up^T) @ W_down^T, with biases where the weights have them. x [t, hidden] -> the same. `residual`
    as in `gated_forward`."""
    ops = env.ops
    normed, statistics = normalize(ops, x, w, env.model.norm_eps, residual)
    saved.keep(x_2=x, statistics_2=statistics, normed_2=normed)
    bias = w.up_bias.data if w.up_bias is not None else None
    up = env.gemms.linear(gather_tokens(normed, env.parallel).wait(), w.up.data, bias)
    del normed, statistics
    down_input = _activate(env, up)
    saved.keep(up=up, down_input=down_input)
    del up
    return row_parallel(env, down_input, w.down, x, w.down_bias)


def plain_backward(env: Environment, grad: Array, w: PlainFeedForwardWeights, saved: Saved) -> Array:
    """grad [t, hidden] -> the gradient of x; adds the weights' gradients."""
    ops = env.ops
    arriving = gather_tokens(grad, env.parallel)
    add_bias(ops, w.down_bias, grad)
    up, down_input = saved.take("up"), saved.take_if_kept("down_input")
    if down_input is None:
        down_input = _activate(env, up)
    full = arriving.wait()
    w.down.add_matmul(env.gemms, full, down_input)
    del down_input, arriving
    grad_down_input = env.gemms.matmul(full, w.down.data)
    del full
    backward_ = ops.silu_backward_ if env.model.activation == "silu" else ops.gelu_backward_
    backward_(grad_down_input, up)  # `up` now holds its own gradient
    del grad_down_input
    grads = [up, grad]
    del up
    return norm_linear_backward(env, w, w.up, w.up_bias, saved, "2", saved.take("x_2"), grads)


def _activate(env: Environment, x: Array) -> Array:
    return env.ops.silu(x) if env.model.activation == "silu" else env.ops.gelu(x)
