"""The attention half of a block with grouped queries (Ainslie et al. 2023): norm, q, k and v in one matmul, rotation,
attention, output.

Symbols: T tokens of a microbatch, t those whose hidden states this rank has; heads and kv_heads are this rank's.
"""

from fourfold.config import ModelConfig
from fourfold.model.context.attention import attend_backward, attend_forward
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.norm import normalize, rms_norm, rms_norm_backward
from fourfold.model.operations import Array
from fourfold.model.rope import rotate_, rotate_into
from fourfold.model.tensor_parallel import add_bias, gather_tokens, norm_linear_backward, row_parallel
from fourfold.model.weights import AttentionWeights, MLAWeights


def grouped_forward(env: Environment, x: Array, w: AttentionWeights, batch: Microbatch, saved: Saved) -> Array:
    """attention(norm(x)) @ W_out^T, yet to be added to x. x [t, hidden] -> the same."""
    qkv = query_key_value(env, x, w, batch, saved)
    heads, kv_heads = local_heads(w, env.model)
    parts = list(qkv.split((heads, kv_heads, kv_heads), dim=-2))
    del qkv
    return output_forward(
        env, attend_forward(env, parts, batch.document_lengths, saved, batch.documents, batch.placement), None, w, saved
    )


def grouped_backward(
    env: Environment, grad: Array, x: Array, w: AttentionWeights, batch: Microbatch, saved: Saved
) -> Array:
    """grad [t, hidden] -> the gradient of x; adds the weights' gradients."""
    grads = attend_backward(env, [output_backward(env, grad, w, saved)], saved)
    return query_key_value_backward(env, grads, grad, x, w, batch, saved)


def query_key_value(env: Environment, x: Array, w: AttentionWeights, batch: Microbatch, saved: Saved) -> Array:
    """Norm, one matmul for q, k and v, norms of q and k where the model has them, rotation unless positions are learned.
    x [t, hidden] -> [batch, seq, heads + 2 kv_heads, head_dim]."""
    ops, model = env.ops, env.model
    normed, statistics = normalize(ops, x, w, model.norm_eps)
    saved.keep(statistics_1=statistics, normed_1=normed)
    bias = w.qkv_bias.data if w.qkv_bias is not None else None
    qkv = env.gemms.linear(gather_tokens(normed, env.parallel).wait(), w.qkv.data, bias)
    del normed, statistics
    heads, kv_heads = local_heads(w, model)
    qkv = qkv.view(batch.tokens.shape[0], -1, heads + 2 * kv_heads, model.head_dim)
    rotated = qkv[..., : heads + kv_heads, :]
    if w.query_norm is not None and w.key_norm is not None:
        with ops.fused():
            unnormed = rotated.clone()
            output, scale = rms_norm(ops, unnormed, _head_gain(env, w), model.norm_eps)
            rotated.copy_(output)
            del output
        saved.keep(unnormed=unnormed, head_scale=scale)
        del unnormed, scale
    if model.positions == "rope":
        with ops.fused():
            rotate_(ops, rotated, batch.cos, batch.sin)
    return qkv


def query_key_value_backward(
    env: Environment,
    grads: list[Array],
    residual: Array,
    x: Array,
    w: AttentionWeights,
    batch: Microbatch,
    saved: Saved,
) -> Array:
    """The gradient of x [t, hidden], `residual` [t, hidden] included. `grads`: of q, k and v, taken out of the list."""
    ops, model = env.ops, env.model
    heads, kv_heads = local_heads(w, model)
    with ops.fused():
        grad_qkv = _joined_gradients(env, grads, batch)
    rotated = grad_qkv[..., : heads + kv_heads, :]
    if w.query_norm is not None:
        with ops.fused():
            _head_norm_backward(env, rotated, w, saved)
    grads = [grad_qkv.view(-1, w.qkv.data.shape[0]), residual]
    del grad_qkv, rotated
    return norm_linear_backward(env, w, w.qkv, w.qkv_bias, saved, "1", x, grads)


def _joined_gradients(env: Environment, grads: list[Array], batch: Microbatch) -> Array:
    """q, k and v's gradients, taken out of the list, in one array [batch, seq, heads + 2 kv_heads, head_dim], turned back where q
    and k were rotated."""
    ops = env.ops
    if env.model.positions != "rope":
        joined = ops.concatenate(grads, dim=-2)
        grads.clear()
        return joined
    grad_q, grad_k, grad_v = grads
    heads, kv_heads = grad_q.shape[2], grad_k.shape[2]
    joined = grad_q.new_empty((*grad_q.shape[:2], heads + 2 * kv_heads, grad_q.shape[3]))
    into_q, into_k, into_v = joined.split((heads, kv_heads, kv_heads), dim=-2)
    rotate_into(ops, grad_q, into_q, batch.cos, batch.sin, inverse=True)
    rotate_into(ops, grad_k, into_k, batch.cos, batch.sin, inverse=True)
    into_v.copy_(grad_v)
    grads.clear()
    return joined


def output_forward(
    env: Environment, attention: Array, residual: Array | None, w: AttentionWeights | MLAWeights, saved: Saved
) -> Array:
    """residual + attention @ W^T + bias. attention [batch, seq, heads * value size], residual [t, hidden] -> the same; None: it is
    yet to be added."""
    flat = attention.view(-1, attention.shape[-1])
    saved.keep(attention=flat)
    bias = w.output_bias if isinstance(w, AttentionWeights) else None
    return row_parallel(env, flat, w.output, residual, bias)


def output_backward(env: Environment, grad: Array, w: AttentionWeights | MLAWeights, saved: Saved) -> Array:
    """grad [t, hidden] -> the gradient of attention's output [T, heads * value size]. `attention` stays in `saved`: its own
    backward reads it too."""
    arriving = gather_tokens(grad, env.parallel)
    if isinstance(w, AttentionWeights):
        add_bias(env.ops, w.output_bias, grad)
    full = arriving.wait()
    w.output.add_matmul(env.gemms, full, saved.see("attention"))
    return env.gemms.matmul(full, w.output.data)


def local_heads(w: AttentionWeights, model: ModelConfig) -> tuple[int, int]:
    """(query heads, key and value heads) that this rank holds."""
    heads = w.output.data.shape[1] // model.head_dim
    return heads, (w.qkv.data.shape[0] // model.head_dim - heads) // 2


def _head_gain(env: Environment, w: AttentionWeights) -> Array:
    """The q and k norms' weights, one row a head: [heads + kv_heads, head_dim]."""
    assert w.query_norm is not None
    assert w.key_norm is not None
    heads, kv_heads = local_heads(w, env.model)
    return env.ops.concatenate((w.query_norm.data.expand(heads, -1), w.key_norm.data.expand(kv_heads, -1)))


def _head_norm_backward(env: Environment, grad: Array, w: AttentionWeights, saved: Saved) -> None:
    """Backward of the q and k norms, in place on grad [batch, seq, heads + kv_heads, head_dim]."""
    heads, width = local_heads(w, env.model), env.model.head_dim
    x, scale = saved.take("unnormed"), saved.take("head_scale")
    parts = zip(grad.split(heads, -2), x.split(heads, -2), scale.split(heads, -2), strict=True)
    for (g, part, s), weight in zip(parts, (w.query_norm, w.key_norm), strict=True):
        assert weight is not None
        rows = (-1, width)
        result = rms_norm_backward(env.ops, env.ops.copy(g).view(*rows), part.reshape(*rows), s.reshape(-1, 1), weight)
        g.copy_(result.view_as(g))
