"""Attention with grouped queries (Ainslie et al. 2023): q, k and v in one matmul, rotation, attention, output.

Symbols: T tokens of a microbatch, t those whose hidden states this rank has; heads and kv_heads are this rank's.
"""

from dataclasses import dataclass
from typing import TypeVar

from fourfold.model.context.attention import attend_backward, attend_forward
from fourfold.model.kinds.kind import Mixer, Pass
from fourfold.model.kinds.query_key_norm import QueryKeyNorm
from fourfold.model.operations import Array, Operations
from fourfold.model.parameter import Declared, Parameters, ParameterSpec, Widths, bias, column, row, split_bias
from fourfold.model.rope import Positional, Rope, Temperature, rotate_, rotate_into
from fourfold.model.tensor_parallel import InputSource, add_bias, column_backward, gather_tokens, row_parallel
from fourfold.model.weights import Weight

T = TypeVar("T")


@dataclass(frozen=True)
class AttentionParameters(Parameters[T]):
    """output [hidden, heads head_dim], qkv [(heads + 2 kv_heads) head_dim, hidden], local heads, each query's gate behind it where
    there are gates; norms of queries and keys [head_dim], or over all local heads; sinks [heads]. `output_bias` [hidden] is
    unsplit on every rank."""

    output: T
    qkv: T
    output_bias: T | None
    sinks: T | None
    query_norm: T | None
    qkv_bias: T | None  # behind what is split by query heads, before what is by key heads: its parts stand together
    key_norm: T | None


@dataclass(frozen=True)
class GroupedAttention(Mixer):
    """`temperature`: of queries. `scale`: of the scores, None: 1/sqrt(head_dim). `output_gate`: the output is multiplied by the
    sigmoid of a gate, which comes from the input as queries do (Qwen3-Next). `sinks`: a logit of every head that takes a share of
    the attention and gives nothing (gpt-oss). `softcap`: scores s become softcap x tanh(s / softcap) (Gemma-2). `window`: the keys
    that a query sees at most, itself the last; `chunk`: tokens of the parts of a document within which it sees; None: no limit."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QueryKeyNorm | None = None
    rope: Rope | None = None
    temperature: Temperature | None = None
    scale: float | None = None
    output_gate: bool = False
    sinks: bool = False
    softcap: float | None = None
    window: int | None = None
    chunk: int | None = None

    @property
    def positional(self) -> tuple[Positional, ...]:
        """The tables that it reads."""
        return tuple(each for each in (self.rope, self.temperature) if each is not None)

    @property
    def words(self) -> str:
        return f"attention{spans(self.window, self.chunk)}{'' if self.rope is not None else ' without rotation'}"

    @property
    def divided(self) -> dict[str, int]:
        return {"model.num_heads": self.num_heads}

    def features(self, tp: int) -> dict[str, int]:
        heads, kv_heads = self.num_heads // tp, max(1, self.num_kv_heads // tp)
        return {"num_heads / tp x head_dim": heads * self.head_dim, "kv heads x head_dim": kv_heads * self.head_dim}

    def declare(self, widths: Widths) -> AttentionParameters[Declared]:
        query, key_value = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        norm = self.qk_norm
        queries = (1 + self.output_gate) * query
        rows = (("q_proj", queries, False), ("k_proj", key_value, True), ("v_proj", key_value, True))
        return AttentionParameters(
            output=row("self_attn.o_proj.weight", widths.hidden, query, widths.residual_std),
            qkv=tuple(column(f"self_attn.{n}.weight", r, widths.hidden, widths.std, kv_heads=kv) for n, r, kv in rows),
            qkv_bias=tuple(split_bias(f"self_attn.{n}.bias", r, kv) for n, r, kv in rows) if self.qkv_bias else None,
            output_bias=bias("self_attn.o_proj.bias", widths.hidden) if self.output_bias else None,
            query_norm=None
            if norm is None or not norm.weights
            else norm.declare("self_attn.q_norm", self.num_heads, self.head_dim, False),
            key_norm=None
            if norm is None or not norm.weights
            else norm.declare("self_attn.k_norm", self.num_kv_heads, self.head_dim, True),
            sinks=ParameterSpec("self_attn.sinks", (self.num_heads,), widths.std, False, 0) if self.sinks else None,
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
        attention = attended(run, parts, self.window, self.chunk, w.sinks, self.softcap)
        return output_forward(run, attention, w.output, residual, w.output_bias, given)

    def backward(self, run: Pass, grad: Array, w: AttentionParameters[Weight], source: InputSource) -> Array:
        """grad [t, hidden] of the output -> the gradient of the residual stream; adds the weights' gradients."""
        gates: list[Array] = []
        given = [output_backward(run, grad, w.output, w.output_bias, gates)]
        grads = attend_backward(run.env, given, run.saved, w.sinks)
        return self.query_key_value_backward(run, grads, w, source, gates)

    def query_key_value(self, run: Pass, given: list[Array], w: AttentionParameters[Weight]) -> Array:
        """One matmul for q, k and v, norms of q and k where there are, rotation. `given`: x [t, hidden], taken out of the list, in
        which the gates of the output [batch, seq, heads, head_dim] stay if there are -> [batch, seq, heads + 2 kv_heads,
        head_dim]."""
        ops, batch = run.ops, run.batch
        added = w.qkv_bias.data if w.qkv_bias is not None else None
        qkv = run.env.gemms.linear(gather_tokens(given.pop(), run.parallel).wait(), w.qkv.data, added)
        heads, kv_heads = self.local_heads(w)
        qkv = qkv.view(batch.tokens.shape[0], -1, qkv.shape[1] // self.head_dim, self.head_dim)
        if self.output_gate:
            with ops.fused():
                both = qkv[..., : 2 * heads, :].unflatten(-2, (heads, 2))
                given.append(ops.copy(both[..., 1, :]))
                qkv = ops.concatenate((both[..., 0, :], qkv[..., 2 * heads :, :]), dim=-2)
                del both
        turned = qkv[..., : heads + kv_heads, :]
        if self.qk_norm is not None and self.qk_norm.weights:
            self.qk_norm.forward_(run, turned, heads, _norms(w), self._widths)
        if self.rope is not None:
            with ops.fused("rotary"):
                rotate_(ops, turned[..., : self.rope.width], *batch.rope[self.rope], self.rope.interleave)
        if self.qk_norm is not None and not self.qk_norm.weights:
            self.qk_norm.plain_forward_(run, turned)
        if self.temperature is not None:
            with ops.fused():
                qkv[..., :heads, :].mul_(_factor(ops, *batch.rope[self.temperature]))
        if self.scale is not None:
            with ops.fused():
                qkv[..., :heads, :].mul_(self._score_scale)
        return qkv

    def query_key_value_backward(
        self, run: Pass, grads: list[Array], w: AttentionParameters[Weight], source: InputSource, gates: list[Array]
    ) -> Array:
        """The gradient of the residual stream [t, hidden]. `grads`: of q, k and v, `gates`: of the gates, if there are, taken out
        of the lists."""
        heads, kv_heads = self.local_heads(w)
        with run.ops.fused():
            self._scale_gradient(run, grads)
        if self.qk_norm is not None and not self.qk_norm.weights:
            grads[:2] = self.qk_norm.plain_backward(run, *grads[:2])
        with run.ops.fused("rotary" if self.rope is not None else ""):
            grad_qkv = self._joined_gradients(run, grads)
        turned = grad_qkv[..., : heads + kv_heads, :]
        if self.qk_norm is not None and self.qk_norm.weights:
            self.qk_norm.backward_(run, turned, heads, _norms(w), self._widths)
        del turned
        if self.output_gate:
            with run.ops.fused():
                joined = grad_qkv.new_empty((*grad_qkv.shape[:2], 2 * heads + 2 * kv_heads, self.head_dim))
                both = joined[..., : 2 * heads, :].unflatten(-2, (heads, 2))
                both[..., 0, :].copy_(grad_qkv[..., :heads, :])
                both[..., 1, :].copy_(gates.pop().view(*both.shape[:3], -1))
                joined[..., 2 * heads :, :].copy_(grad_qkv[..., heads:, :])
                grad_qkv = joined
                del joined, both
        given = [grad_qkv.view(-1, w.qkv.data.shape[0])]
        del grad_qkv
        return column_backward(run.env, w.qkv, w.qkv_bias, given, source)

    def local_heads(self, w: AttentionParameters[Weight]) -> tuple[int, int]:
        """(query heads, key and value heads) that this rank holds."""
        heads = w.output.data.shape[1] // self.head_dim
        return heads, (w.qkv.data.shape[0] // self.head_dim - (1 + self.output_gate) * heads) // 2

    def _scale_gradient(self, run: Pass, grads: list[Array]) -> None:
        """Puts q's gradient before its factors in the place of that behind them."""
        if self.scale is not None:
            grads[0] = grads[0] * self._score_scale
        if self.temperature is not None:
            factor = _factor(run.ops, *run.batch.rope[self.temperature])
            grads[0] = run.ops.copy(grads[0]).mul_(factor)

    def _joined_gradients(self, run: Pass, grads: list[Array]) -> Array:
        """q, k and v's gradients, taken out of the list, in one array [batch, seq, heads + 2 kv_heads, head_dim], turned back where
        q and k were rotated."""
        ops = run.ops
        if self.rope is None:
            joined = ops.concatenate(grads, dim=-2)
            grads.clear()
            return joined
        if self.rope.width < self.head_dim or self.rope.interleave:
            joined = ops.concatenate(grads, dim=-2)
            turned = joined[..., : grads[0].shape[2] + grads[1].shape[2], : self.rope.width]
            grads.clear()
            rotate_(ops, turned, *run.batch.rope[self.rope], self.rope.interleave, inverse=True)
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

    @property
    def _score_scale(self) -> float:
        """The factor of the scores beside 1/sqrt(head_dim), which is in q."""
        return 1.0 if self.scale is None else self.scale * self.head_dim**0.5

    @property
    def _widths(self) -> tuple[int, int]:
        """Elements of all ranks' queries, and of their keys, of a token."""
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim


def _norms(w: AttentionParameters[Weight]) -> tuple[Weight, Weight]:
    assert w.query_norm is not None
    assert w.key_norm is not None
    return w.query_norm, w.key_norm


def _factor(ops: Operations, rounded: Array, rest: Array) -> Array:
    return ops.upcast(rounded) + ops.upcast(rest)


def spans(window: int | None, chunk: int | None) -> str:
    """How far attention looks, as a person reads it."""
    return f" within {window:,} tokens" if window else f" in chunks of {chunk:,} tokens" if chunk else ""


def attended(
    run: Pass,
    parts: list[Array],
    window: int | None = None,
    chunk: int | None = None,
    sink: Weight | None = None,
    cap: float | None = None,
) -> Array:
    """Causal attention of q, k and v, taken out of the list, as in `attend_forward`."""
    batch = run.batch
    masks = batch.documents, batch.placement, window, chunk, sink, cap
    return attend_forward(run.env, parts, batch.document_lengths, run.saved, *masks)


def output_forward(
    run: Pass,
    attention: Array,
    output: Weight,
    residual: Array | None,
    added: Weight | None = None,
    gates: list[Array] | None = None,
) -> Array:
    """residual + attention @ W^T + bias. attention [batch, seq, heads * value size], residual [t, hidden] -> the same; None: it is
    yet to be added. `gates`: attention is multiplied by the sigmoid of what stands in the list, which is taken out."""
    flat = attention.view(-1, attention.shape[-1])
    run.saved.keep(attention=flat)
    if gates:
        gate = gates.pop().view(*flat.shape)
        run.saved.keep(gate=gate)
        with run.ops.fused():
            flat = gate.sigmoid().mul_(flat)
            del gate
    return row_parallel(run.env, flat, output, residual, added)


def output_backward(
    run: Pass, grad: Array, output: Weight, added: Weight | None = None, gates: list[Array] | None = None
) -> Array:
    """grad [t, hidden] -> the gradient of attention's output [T, heads * value size]. `attention` stays in `saved`: its own
    backward reads it too. `gates`: gets the gradient of the gate where there was one."""
    arriving = gather_tokens(grad, run.parallel)
    add_bias(run.ops, added, grad)
    attention, gate = run.saved.see("attention"), run.saved.take_if_kept("gate")
    if gate is None or gates is None:
        full = arriving.wait()
        output.add_matmul(run.env.gemms, full, attention)
        return run.env.gemms.matmul(full, output.data)
    with run.ops.fused():
        opened = gate.sigmoid()
        del gate
        gated = attention * opened
    full = arriving.wait()
    output.add_matmul(run.env.gemms, full, gated)
    del gated, arriving
    out = run.env.gemms.matmul(full, output.data)
    del full
    with run.ops.fused():
        slope = (1 - opened).mul_(opened).mul_(attention).mul_(out)
        gates.append(slope)
        out.mul_(opened)
        del slope, opened, attention
    return out
