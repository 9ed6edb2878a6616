"""The attention half of a block with multi-head latent attention (MLA; DeepSeek-V2, Liu et al. 2024, section 2.1).

Queries, keys and values come from low-rank latents, which every rank of `tp` computes of its own tokens; under sequence
parallelism the normed latents are brought together, not the hidden states. With `rope_interleave` pairs are neighbours and
stay where they are, in q and k alike, so that scores are those of transformers, which sorts them apart. YaRN's factor of the
scores is in q. Symbols: T tokens of a microbatch, t those whose hidden states this rank has, c q_lora_rank (hidden where
queries have no latent), r kv_lora_rank, d rope_head_dim; heads are this rank's."""

from fourfold.model.attention import output_backward, output_forward
from fourfold.model.context.attention import attend_backward, attend_forward
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.norm import apply_rms, normalize, normalize_again, normalize_backward, rms_norm, rms_norm_backward
from fourfold.model.operations import Array
from fourfold.model.rope import rotate_, score_scale
from fourfold.model.tensor_parallel import ColumnInput, gather_tokens, sum_partial
from fourfold.model.weights import MLAWeights, Weight

COMPRESSED_NORM_EPS = 1e-6
"""The epsilon of the latents' norms, in the released models and in transformers whatever the blocks' `norm_eps`."""


def mla_forward(env: Environment, x: Array, w: MLAWeights, batch: Microbatch, saved: Saved) -> Array:
    """attention(norm(x)) @ W_out^T, yet to be added to x. x [t, hidden] -> the same."""
    parts = mla_query_key_value(env, x, w, batch, saved)
    return output_forward(
        env, attend_forward(env, parts, batch.document_lengths, saved, batch.documents, batch.placement), None, w, saved
    )


def mla_backward(env: Environment, grad: Array, x: Array, w: MLAWeights, batch: Microbatch, saved: Saved) -> Array:
    """grad [t, hidden] -> the gradient of x; adds the weights' gradients."""
    grads = attend_backward(env, [output_backward(env, grad, w, saved)], saved)
    return mla_query_key_value_backward(env, grads, grad, x, w, batch, saved)


def mla_query_key_value(env: Environment, x: Array, w: MLAWeights, batch: Microbatch, saved: Saved) -> list[Array]:
    """Norm, projection to latents, their norms, projection to heads, rotation of the part of each head that has positions. x [t,
    hidden] -> q and k [batch, seq, heads, nope_head_dim + d], v [batch, seq, heads, value_head_dim]."""
    ops, model = env.ops, env.model
    rank, rope = w.key_value_norm.data.shape[0], model.rope_head_dim
    normed, statistics = normalize(ops, x, w, model.norm_eps)
    saved.keep(statistics_1=statistics, normed_1=normed)
    down = env.gemms_of(rank + rope).linear(normed, w.key_value_down.data)
    compressed, rope_key = down.split((rank, rope), dim=1)
    normed_compressed = _norm_compressed(env, compressed, w.key_value_norm, "latent", saved)
    query_input = normed
    if w.query_down is not None and w.query_norm is not None:
        query_input = _norm_compressed(env, env.gemms.linear(normed, w.query_down.data), w.query_norm, "query", saved)
    del normed, statistics, compressed, down
    given = [normed_compressed, rope_key, query_input]
    del normed_compressed, rope_key, query_input
    _gather(env, given)
    q = _heads(env, given.pop(), w.query_up, batch, model.head_dim)
    with ops.fused():
        rotate_(ops, q[..., model.nope_head_dim :], batch.cos, batch.sin, model.rope_interleave)
        if score_scale(model) != 1:
            q.mul_(score_scale(model))
    rope_key, compressed = given.pop(), given.pop()
    widths = (model.nope_head_dim, model.value_head_dim)
    key, value = _heads(env, compressed, w.key_value_up, batch, sum(widths)).split(widths, dim=-1)
    del compressed
    with ops.fused():
        shared = ops.copy(rope_key.reshape(*key.shape[:2], 1, -1))
        del rope_key
        rotate_(ops, shared, batch.cos, batch.sin, model.rope_interleave)
        k = ops.concatenate((key, shared.expand(*key.shape[:3], -1)), dim=-1)
        v = value.contiguous()
        del shared
    return [q, k, v]


def mla_query_key_value_backward(
    env: Environment,
    grads: list[Array],
    residual: Array,
    x: Array,
    w: MLAWeights,
    batch: Microbatch,
    saved: Saved,
) -> Array:
    """The gradient of x [t, hidden], `residual` [t, hidden] included. `grads`: of q, k and v, taken out of the list."""
    ops, eps = env.ops, env.model.norm_eps
    given = _heads_backward(env, grads, batch)
    statistics = saved.take("statistics_1")
    normed = saved.take_if_kept("normed_1")
    if normed is None:
        normed = normalize_again(ops, x, statistics, w, eps)
    query_norm = w.query_norm
    query_input = normed if query_norm is None else _norm_again(env, query_norm, "query", saved)
    inputs = ColumnInput(env, w.query_up, query_input)
    latents = ColumnInput(env, w.key_value_up, _norm_again(env, w.key_value_norm, "latent", saved))
    del query_input
    grad_query, grad_key_value, grad_rope_key = given
    given.clear()
    parts = [
        env.gemms.matmul(grad_key_value, w.key_value_up.data),
        grad_rope_key,
        env.gemms.matmul(grad_query, w.query_up.data),
    ]
    del grad_rope_key
    widths = [part.shape[1] for part in parts]
    with ops.fused():
        summed = sum_partial(ops.concatenate(parts, dim=1), env.parallel)
    parts.clear()
    inputs.add_matmul(grad_query)
    latents.add_matmul(grad_key_value)
    del inputs, latents, grad_query, grad_key_value
    grad_compressed, grad_rope_key, grad_input = summed.wait().split(widths, dim=1)
    del summed
    with ops.fused():
        grad_compressed = rms_norm_backward(ops, grad_compressed, *_taken(saved, "latent"), w.key_value_norm)
        grad_down = ops.concatenate((grad_compressed, grad_rope_key), dim=1)
        del grad_compressed, grad_rope_key
    grad = _project_backward(env, grad_down, w.key_value_down, normed)
    del grad_down
    if query_norm is not None and w.query_down is not None:
        with ops.fused():
            grad_input = rms_norm_backward(ops, grad_input, *_taken(saved, "query"), query_norm)
        grad_input = _project_backward(env, grad_input, w.query_down, normed)
    with ops.fused():
        grad.add_(grad_input)
        del normed, grad_input
        return normalize_backward(ops, grad, x, statistics, w, residual)


def _norm_compressed(env: Environment, compressed: Array, norm: Weight, name: str, saved: Saved) -> Array:
    """The norm of a latent [t, rank], kept with the latent itself and its 1/rms."""
    with env.ops.fused():
        normed, scale = rms_norm(env.ops, compressed, norm.data, COMPRESSED_NORM_EPS)
    saved.keep(**{name: compressed, f"scale_{name}": scale, f"normed_{name}": normed})
    return normed


def _norm_again(env: Environment, norm: Weight, name: str, saved: Saved) -> Array:
    """A latent's norm, kept or made again."""
    normed = saved.take_if_kept(f"normed_{name}")
    if normed is None:
        with env.ops.fused():
            normed = apply_rms(env.ops, saved.see(name), saved.see(f"scale_{name}"), norm.data, COMPRESSED_NORM_EPS)
    return normed


def _taken(saved: Saved, name: str) -> tuple[Array, Array]:
    """A latent and its 1/rms, no longer kept."""
    return saved.take(name), saved.take(f"scale_{name}")


def _project_backward(env: Environment, grad: Array, down: Weight, x: Array) -> Array:
    """grad [t, rows] of x [t, hidden] @ down^T -> the gradient of x; adds the weight's."""
    gemms = env.gemms_of(down.data.shape[0])
    down.add_matmul(gemms, grad, x)
    return gemms.matmul(grad, down.data)


def _gather(env: Environment, parts: list[Array]) -> None:
    """In place on the list: all tokens' latents, each [t, ...] -> [T, ...], in one collective."""
    if env.parallel.tp is None or not env.parallel.sequence:
        return
    widths = [part.shape[1] for part in parts]
    with env.ops.fused():
        local = env.ops.concatenate(parts, dim=1)
    full = gather_tokens(local, env.parallel).wait()
    parts[:] = full.split(widths, dim=1)


def _heads(env: Environment, x: Array, up: Weight, batch: Microbatch, width: int) -> Array:
    return env.gemms.linear(x, up.data).view(batch.tokens.shape[0], -1, up.data.shape[0] // width, width)


def _heads_backward(env: Environment, grads: list[Array], batch: Microbatch) -> list[Array]:
    """Gradients of both up projections' outputs [T, heads x ...] and of the shared key [T, d], the last over this rank's heads."""
    ops, model, nope = env.ops, env.model, env.model.nope_head_dim
    grad_q, grad_k, grad_v = grads
    grads.clear()
    with ops.fused():
        grad_query = grad_q.contiguous()
        del grad_q
        if score_scale(model) != 1:
            grad_query.mul_(score_scale(model))
        rotate_(ops, grad_query[..., nope:], batch.cos, batch.sin, model.rope_interleave, inverse=True)
    with ops.fused():
        grad_rope_key = grad_k[..., nope:].sum(-2, keepdim=True)
        rotate_(ops, grad_rope_key, batch.cos, batch.sin, model.rope_interleave, inverse=True)
        grad_key_value = ops.concatenate((grad_k[..., :nope], grad_v), dim=-1)
    tokens = grad_query.shape[0] * grad_query.shape[1]
    return [x.view(tokens, -1) for x in (grad_query, grad_key_value, grad_rope_key)]
