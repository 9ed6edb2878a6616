"""Attention with grouped queries (Ainslie et al. 2023): q, k and v in one matmul, rotation, attention, output.

Symbols: T tokens of a microbatch, t those whose hidden states this rank has; heads and kv_heads are this rank's.
"""

from dataclasses import dataclass
from typing import TypeVar

from fourfold.model.context.attention import attend_backward, attend_forward
from fourfold.model.kinds.kind import Pass
from fourfold.model.norm import rms_norm, rms_norm_backward
from fourfold.model.operations import Array
from fourfold.model.parameter import Declared, Parameters, Widths, bias, column, gain, row, split_bias
from fourfold.model.rope import Rope, rotate_, rotate_into
from fourfold.model.tensor_parallel import InputSource, add_bias, column_backward, gather_tokens, row_parallel
from fourfold.model.weights import Weight

T = TypeVar("T")


@dataclass(frozen=True)
class AttentionParameters(Parameters[T]):
    """output [hidden, heads head_dim], qkv [(heads + 2 kv_heads) head_dim, hidden], local heads; norms of queries and keys
    [head_dim]. `output_bias` [hidden] is unsplit on every rank."""

    output: T
    qkv: T
    qkv_bias: T | None
    output_bias: T | None
    query_norm: T | None
    key_norm: T | None


@dataclass(frozen=True)
class GroupedAttention:
    """`qk_norm`: RMSNorms of every head's query and key. `window`: the keys that a query sees at most, itself the last; `chunk`:
    tokens of the parts of a document within which it sees; None: no limit."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    norm_eps: float = 1e-5
    rope: Rope | None = None
    window: int | None = None
    chunk: int | None = None

    def declare(self, widths: Widths) -> AttentionParameters[Declared]:
        query, key_value = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        rows = (("q_proj", query, False), ("k_proj", key_value, True), ("v_proj", key_value, True))
        return AttentionParameters(
            output=row("self_attn.o_proj.weight", widths.hidden, query, widths.residual_std),
            qkv=tuple(column(f"self_attn.{n}.weight", r, widths.hidden, widths.std, kv_heads=kv) for n, r, kv in rows),
            qkv_bias=tuple(split_bias(f"self_attn.{n}.bias", r, kv) for n, r, kv in rows) if self.qkv_bias else None,
            output_bias=bias("self_attn.o_proj.bias", widths.hidden) if self.output_bias else None,
            query_norm=gain("self_attn.q_norm.weight", self.head_dim, "always") if self.qk_norm else None,
            key_norm=gain("self_attn.k_norm.weight", self.head_dim, "always") if self.qk_norm else None,
        )

    def forward(
        self, run: Pass, given: list[Array], w: AttentionParameters[Weight], residual: Array | None = None
    ) -> Array:
        """residual + attention(x) @ W_out^T + bias. `given`: x [t, hidden], taken out of the list -> [t, hidden]. `residual` [t,
        hidden] None: it is yet to be added."""
        qkv = self.query_key_value(run, given, w)
        heads, kv_heads = self.local_heads(w)
        parts = list(qkv.split((heads, kv_heads, kv_heads), dim=-2))
        del qkv
        return output_forward(run, attended(run, parts, self.window, self.chunk), w.output, residual, w.output_bias)

    def backward(self, run: Pass, grad: Array, w: AttentionParameters[Weight], source: InputSource) -> Array:
        """grad [t, hidden] of the output -> the gradient of the residual stream; adds the weights' gradients."""
        grads = attend_backward(run.env, [output_backward(run, grad, w.output, w.output_bias)], run.saved)
        return self.query_key_value_backward(run, grads, w, source)

    def query_key_value(self, run: Pass, given: list[Array], w: AttentionParameters[Weight]) -> Array:
        """One matmul for q, k and v, norms of q and k where there are, rotation. `given`: x [t, hidden], taken out of the list ->
        [batch, seq, heads + 2 kv_heads, head_dim]."""
        ops, batch = run.ops, run.batch
        added = w.qkv_bias.data if w.qkv_bias is not None else None
        qkv = run.env.gemms.linear(gather_tokens(given.pop(), run.parallel).wait(), w.qkv.data, added)
        heads, kv_heads = self.local_heads(w)
        qkv = qkv.view(batch.tokens.shape[0], -1, heads + 2 * kv_heads, self.head_dim)
        turned = qkv[..., : heads + kv_heads, :]
        if self.qk_norm:
            with ops.fused():
                unnormed = turned.clone()
                output, scale = rms_norm(ops, unnormed, self._head_gain(run, w), self.norm_eps)
                turned.copy_(output)
                del output
            run.saved.keep(unnormed=unnormed, head_scale=scale)
            del unnormed, scale
        if self.rope is not None:
            with ops.fused():
                rotate_(ops, turned, *batch.rope[self.rope], self.rope.interleave)
        return qkv

    def query_key_value_backward(
        self, run: Pass, grads: list[Array], w: AttentionParameters[Weight], source: InputSource
    ) -> Array:
        """The gradient of the residual stream [t, hidden]. `grads`: of q, k and v, taken out of the list."""
        heads, kv_heads = self.local_heads(w)
        with run.ops.fused():
            grad_qkv = self._joined_gradients(run, grads)
        turned = grad_qkv[..., : heads + kv_heads, :]
        if self.qk_norm:
            with run.ops.fused():
                self._head_norm_backward(run, turned, w)
        given = [grad_qkv.view(-1, w.qkv.data.shape[0])]
        del grad_qkv, turned
        return column_backward(run.env, w.qkv, w.qkv_bias, given, source)

    def local_heads(self, w: AttentionParameters[Weight]) -> tuple[int, int]:
        """(query heads, key and value heads) that this rank holds."""
        heads = w.output.data.shape[1] // self.head_dim
        return heads, (w.qkv.data.shape[0] // self.head_dim - heads) // 2

    def _joined_gradients(self, run: Pass, grads: list[Array]) -> Array:
        """q, k and v's gradients, taken out of the list, in one array [batch, seq, heads + 2 kv_heads, head_dim], turned back where
        q and k were rotated."""
        ops = run.ops
        if self.rope is None:
            joined = ops.concatenate(grads, dim=-2)
            grads.clear()
            return joined
        grad_q, grad_k, grad_v = grads
        heads, kv_heads = grad_q.shape[2], grad_k.shape[2]
        joined = grad_q.new_empty((*grad_q.shape[:2], heads + 2 * kv_heads, grad_q.shape[3]))
        into_q, into_k, into_v = joined.split((heads, kv_heads, kv_heads), dim=-2)
        tables = run.batch.rope[self.rope]
        rotate_into(ops, grad_q, into_q, *tables, inverse=True)
        rotate_into(ops, grad_k, into_k, *tables, inverse=True)
        into_v.copy_(grad_v)
        grads.clear()
        return joined

    def _head_gain(self, run: Pass, w: AttentionParameters[Weight]) -> Array:
        """The q and k norms' weights, one row a head: [heads + kv_heads, head_dim]."""
        assert w.query_norm is not None
        assert w.key_norm is not None
        heads, kv_heads = self.local_heads(w)
        return run.ops.concatenate((w.query_norm.data.expand(heads, -1), w.key_norm.data.expand(kv_heads, -1)))

    def _head_norm_backward(self, run: Pass, grad: Array, w: AttentionParameters[Weight]) -> None:
        """Backward of the q and k norms, in place on grad [batch, seq, heads + kv_heads, head_dim]."""
        ops, heads = run.ops, self.local_heads(w)[0]
        x, scale = run.saved.take("unnormed"), run.saved.take("head_scale")
        parts = zip(grad.split(heads, -2), x.split(heads, -2), scale.split(heads, -2), strict=True)
        for (g, part, s), weight in zip(parts, (w.query_norm, w.key_norm), strict=True):
            assert weight is not None
            rows = (-1, self.head_dim)
            result = rms_norm_backward(ops, ops.copy(g).view(*rows), part.reshape(*rows), s.reshape(-1, 1), weight)
            g.copy_(result.view_as(g))


def attended(run: Pass, parts: list[Array], window: int | None = None, chunk: int | None = None) -> Array:
    """Causal attention of q, k and v, taken out of the list, as in `attend_forward`."""
    batch = run.batch
    masks = batch.documents, batch.placement, window, chunk
    return attend_forward(run.env, parts, batch.document_lengths, run.saved, *masks)


def output_forward(
    run: Pass, attention: Array, output: Weight, residual: Array | None, added: Weight | None = None
) -> Array:
    """residual + attention @ W^T + bias. attention [batch, seq, heads * value size], residual [t, hidden] -> the same; None: it is
    yet to be added."""
    flat = attention.view(-1, attention.shape[-1])
    run.saved.keep(attention=flat)
    return row_parallel(run.env, flat, output, residual, added)


def output_backward(run: Pass, grad: Array, output: Weight, added: Weight | None = None) -> Array:
    """grad [t, hidden] -> the gradient of attention's output [T, heads * value size]. `attention` stays in `saved`: its own
    backward reads it too."""
    arriving = gather_tokens(grad, run.parallel)
    add_bias(run.ops, added, grad)
    full = arriving.wait()
    output.add_matmul(run.env.gemms, full, run.saved.see("attention"))
    return run.env.gemms.matmul(full, output.data)
