"""Causal attention of sequences that one rank holds, document by document."""

from fourfold.model.context.partial import AttentionInputs, own_gradients, own_output
from fourfold.model.context.pieces import Documents, own_pieces
from fourfold.model.environment import Environment, Saved
from fourfold.model.operations import Array


def local_forward(env: Environment, parts: list[Array], documents: Documents, saved: Saved) -> Array:
    """As `attend_forward`, for whole sequences -> [batch, seq, heads, value_dim]. Keeps q, k, v and the log-sum-exp."""
    ops, (q, k, v) = env.ops, parts
    saved.keep(qkv=(q, k, v))
    parts.clear()
    width = ops.kernel_width(q, v)
    pieces = own_pieces(0, 1, q.shape[1], documents)
    given = [ops.pad_last(x, width) for x in (q, k, v)]
    out, lse = own_output(ops, given, pieces, q.shape[-1] ** -0.5, q.dtype)
    saved.keep(lse=lse, pieces=pieces)
    return out[..., : v.shape[-1]].contiguous()


def local_backward(env: Environment, given: list[Array], saved: Saved) -> list[Array]:
    """Gradients of q, k and v. `given`: gradient and output [batch, seq, heads, value_dim], taken out of the list."""
    ops, (grad, out) = env.ops, given
    given.clear()
    q, k, v = saved.take("qkv")
    width, sizes = ops.kernel_width(q, v), (q.shape[-1], k.shape[-1], v.shape[-1])
    inputs = AttentionInputs(
        ops,
        ops.pad_last(grad, width),
        ops.pad_last(q, width),
        ops.pad_last(out, width),
        saved.take("lse"),
        sizes[0] ** -0.5,
    )
    del grad, out
    keys = [ops.pad_last(k, width), ops.pad_last(v, width)]
    del q, k, v
    grads = own_gradients(inputs, keys, saved.take("pieces"))
    return [x[..., :size] for x, size in zip(grads, sizes, strict=True)]
