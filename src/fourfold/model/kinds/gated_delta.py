"""Gated DeltaNet (Yang, Kautz & Hatamizadeh 2024), as in Qwen3-Next: a recurrence over tokens in place of attention.

Queries, keys and values pass a short causal convolution of each channel and a SiLU; queries and keys are divided by their lengths;
the gated delta rule (`model/delta.py`) reads them, with a decay and a writing strength of each value head; its output is normed,
head by head, and gated. All but what the two projections give and the rule's output is computed again in backward. Tensor
parallelism splits key heads, each with the value heads that it serves.

Symbols: T tokens of a microbatch, t those whose hidden states this rank has, G key heads, H value heads (both this rank's), d and v
the sizes of a key and of a value, r = H / G, c = 2 d + r v channels of a key head that the convolution sees.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from fourfold.model.context.recurrence import by_kernels, recurrence_backward, recurrence_forward, stretches
from fourfold.model.convolution import (
    add_in_front,
    convolve,
    convolve_backward,
    in_front,
    padded,
    positions_of,
    split_gradient,
)
from fourfold.model.kinds.kind import Mixer, Pass
from fourfold.model.norm import rms_norm, rms_norm_backward
from fourfold.model.operations import Array
from fourfold.model.parameter import Declared, Parameters, ParameterSpec, Widths, column, gain, row
from fourfold.model.tensor_parallel import InputSource, column_backward, gather_tokens, row_parallel
from fourfold.model.weights import Weight

T = TypeVar("T")
LENGTH_EPS = 1e-6
"""Added to the squared lengths of queries and keys, in the released models whatever the blocks' `norm_eps`."""


@dataclass(frozen=True)
class GatedDeltaParameters(Parameters[T]):
    """output [hidden, H v]; projection [G (2 d + 2 r v) + 2 H, hidden]: of each key head q, k, its values and their gates, then of
    each key head its strengths and decays; convolution [G d + G d + H v, 1, kernel]; decay, step_bias [H]; norm [v]."""

    output: T
    projection: T
    convolution: T
    decay: T
    step_bias: T
    norm: T


class _Projected(NamedTuple):
    """Views of what the projection gave: `mixed` [batch, seq, G, c], `gate` [batch, seq, G, r v], `strengths` and `decays` [batch,
    seq, G, r]."""

    mixed: Array
    gate: Array
    strengths: Array
    decays: Array


@dataclass(frozen=True)
class GatedDelta(Mixer):
    """`kernel`: tokens that the convolution sees, itself the last."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel: int = 4
    norm_eps: float = 1e-6

    attends = False

    @property
    def words(self) -> str:
        return "gated delta rule"

    @property
    def divided(self) -> dict[str, int]:
        return {"model.delta_key_heads": self.num_key_heads}

    def features(self, tp: int) -> dict[str, int]:
        keys, values = self.num_key_heads * self.key_head_dim, self.num_value_heads * self.value_head_dim
        return {
            "what a gated delta rule projects / tp": 2 * (keys + values + self.num_value_heads) // tp,
            "delta_value_heads / tp x delta_value_dim": values // tp,
        }

    @property
    def state_flops(self) -> int:
        """A token erases from the state, writes to it and reads it."""
        return 6 * self.num_value_heads * self.key_head_dim * self.value_head_dim

    @property
    def copies(self) -> int:
        """Value heads of a key head."""
        return self.num_value_heads // self.num_key_heads

    @property
    def channels(self) -> int:
        """Channels of a key head that are convolved."""
        return 2 * self.key_head_dim + self.copies * self.value_head_dim

    def declare(self, widths: Widths) -> GatedDeltaParameters[Declared]:
        keys, values = self.num_key_heads * self.key_head_dim, self.num_value_heads * self.value_head_dim
        heads, hidden, std = self.num_value_heads, widths.hidden, widths.std
        rows = (("in_proj_qkvz", 2 * keys + 2 * values), ("in_proj_ba", 2 * heads))
        convolved = (("conv_q", keys), ("conv_k", keys), ("conv_v", values))
        return GatedDeltaParameters(
            output=row("linear_attn.out_proj.weight", hidden, values, widths.residual_std),
            projection=tuple(column(f"linear_attn.{name}.weight", n, hidden, std) for name, n in rows),
            convolution=tuple(
                ParameterSpec(f"linear_attn.{name}.weight", (n, 1, self.kernel), std, True, 0) for name, n in convolved
            ),
            decay=ParameterSpec("linear_attn.A_log", (heads,), std, False, 0, log_uniform=(0.01, 16.0)),
            step_bias=ParameterSpec("linear_attn.dt_bias", (heads,), None, False, 0),
            norm=gain("linear_attn.norm.weight", self.value_head_dim, "always"),
        )

    def forward(
        self, run: Pass, given: list[Array], w: GatedDeltaParameters[Weight], residual: Array | None = None
    ) -> Array:
        """residual + the output. `given`: x [t, hidden], taken out of the list -> [t, hidden]. `residual` [t, hidden] None: it is
        yet to be added."""
        env, ops, saved = run.env, run.ops, run.saved
        projected = env.gemms.linear(gather_tokens(given.pop(), run.parallel).wait(), w.projection.data)
        seen = self._split(run, projected, w)
        saved.keep(projected=projected)
        del projected
        before = in_front(env, seen.mixed, self.kernel)
        inputs = self._rule_inputs(run, seen, w, before)
        saved.keep(halo=before)
        del before
        recurred = recurrence_forward(env, inputs, positions_of(run.batch, run.parallel), saved)
        inputs.clear()
        with ops.fused():
            rows = recurred.to(seen.gate.dtype).contiguous().view(-1, self.value_head_dim)
            del recurred
            normed, scale = rms_norm(ops, rows, w.norm.data, self.norm_eps)
            saved.keep(recurred=rows, head_scale=scale)
            del rows, scale
            flat = self._gated(run, normed, seen.gate)
            del normed, seen
        saved.keep(gated_output=flat)
        return row_parallel(env, flat, w.output, residual)

    def backward(self, run: Pass, grad: Array, w: GatedDeltaParameters[Weight], source: InputSource) -> Array:
        """grad [t, hidden] of the output -> the gradient of the residual stream; adds the weights' gradients."""
        env, ops, saved = run.env, run.ops, run.saved
        arriving = gather_tokens(grad, run.parallel)
        seen = self._split(run, saved.take("projected"), w)
        recurred, scale = saved.take("recurred"), saved.take("head_scale")
        flat = saved.take_if_kept("gated_output")
        if flat is None:
            with ops.fused():
                flat = self._gated(run, rms_norm(ops, recurred, w.norm.data, self.norm_eps)[0], seen.gate)
        full = arriving.wait()
        w.output.add_matmul(env.gemms, full, flat)
        del flat, arriving
        gradient = env.gemms.matmul(full, w.output.data)
        del full
        into = seen.mixed.new_empty((*seen.mixed.shape[:2], w.projection.data.shape[0]))
        grads = self._split(run, into, w)
        given = [gradient, recurred, scale]
        del gradient, recurred, scale
        self._gate_backward(run, given, seen.gate, grads.gate, w)
        before = saved.take_if_kept("halo")
        inputs = self._rule_inputs(run, seen, w, before)
        found = list(recurrence_backward(env, given.pop(), inputs, positions_of(run.batch, run.parallel), saved))
        self._rule_inputs_backward(run, found, inputs, seen, grads, w, before)
        del inputs, seen, grads, before
        given.append(into.view(-1, into.shape[-1]))
        del into
        return column_backward(env, w.projection, None, given, source)

    def _heads(self, w: GatedDeltaParameters[Weight]) -> tuple[int, int]:
        """(key heads, value heads) that this rank holds."""
        heads = w.decay.data.shape[0]
        return heads // self.copies, heads

    def _by_head(self, x: Array) -> Array:
        """[batch, seq, G, r v] -> view [batch, seq, G, r, v]."""
        return x.unflatten(-1, (self.copies, self.value_head_dim))

    def _gated(self, run: Pass, normed: Array, gate: Array) -> Array:
        """normed [batch seq H, v], which is overwritten, times SiLU of the gate [batch, seq, G, r v] -> [T, H v]."""
        active = run.ops.silu(self._by_head(gate))
        return normed.view(*active.shape).mul_(active).flatten(2).flatten(0, 1)

    def _split(self, run: Pass, projected: Array, w: GatedDeltaParameters[Weight]) -> _Projected:
        rows, (groups, heads) = run.batch.tokens.shape[0] * stretches(run.parallel), self._heads(w)
        values = self.copies * self.value_head_dim
        x = projected.view(rows, -1, projected.shape[-1])
        of_heads, of_gates = x.split((groups * (self.channels + values), 2 * heads), dim=-1)
        mixed, gate = of_heads.unflatten(-1, (groups, -1)).split((self.channels, values), dim=-1)
        strengths, decays = of_gates.unflatten(-1, (groups, -1)).split((self.copies, self.copies), dim=-1)
        return _Projected(mixed, gate, strengths, decays)

    def _rule_inputs(
        self, run: Pass, seen: _Projected, w: GatedDeltaParameters[Weight], before: Array | None
    ) -> list[Array]:
        """q, k [batch, seq, G, d], v [batch, seq, H, v], g and b [batch, seq, H] in the accumulation format."""
        ops, size = run.ops, self.key_head_dim
        with ops.fused():
            tokens = padded(ops, seen.mixed, before, self.kernel)
            convolved = convolve(ops, tokens, self._taps(run, w), positions_of(run.batch, run.parallel))
            del tokens
            active = ops.silu(convolved)
            del convolved
            q, k = (self._unit(run, active[..., first : first + size])[0] for first in (0, size))
            q.mul_(size**-0.5)
            v = ops.copy(self._by_head(active[..., 2 * size :])).flatten(2, 3)
            del active
            if by_kernels(run.env) is not None:
                q, k, v = (x.to(seen.mixed.dtype) for x in (q, k, v))
        with ops.fused():
            b = ops.upcast(seen.strengths).sigmoid().flatten(2)
            steps = ops.softplus(self._steps(run, seen, w))
            g = steps.mul_(ops.upcast(w.decay.data).exp()).neg_()
            del steps
        return [q, k, v, g, b]

    def _steps(self, run: Pass, seen: _Projected, w: GatedDeltaParameters[Weight]) -> Array:
        return (run.ops.upcast(seen.decays) + w.step_bias.data.view(*seen.decays.shape[2:])).flatten(2)

    def _unit(self, run: Pass, x: Array) -> tuple[Array, Array]:
        """x [..., d] divided by its length, and the inverse of that [..., 1]."""
        length = (x * x).sum(-1, keepdim=True)
        inverse = length.add_(LENGTH_EPS).rsqrt_()
        return x * inverse, inverse

    def _taps(self, run: Pass, w: GatedDeltaParameters[Weight]) -> Array:
        """The convolution's weights [kernel, G, c], those of the token itself last, in the accumulation format."""
        data = w.convolution.data
        taps = data.new_empty((self.kernel, self._heads(w)[0], self.channels), dtype=run.ops.accumulation_dtype(data))
        for into, part in zip(self._channels(taps), self._channels_of(data, w), strict=True):
            into.copy_(part.permute(2, 0, 1))
        return taps

    def _channels(self, taps: Array) -> tuple[Array, ...]:
        """The channels of q, of k and of v, as views."""
        size = self.key_head_dim
        return taps.split((size, size, self.channels - 2 * size), dim=-1)

    def _channels_of(self, data: Array, w: GatedDeltaParameters[Weight]) -> list[Array]:
        """[G d + G d + H v, 1, kernel] -> q's, k's and v's as views [G, ..., kernel]."""
        groups, heads = self._heads(w)
        keys, values = groups * self.key_head_dim, heads * self.value_head_dim
        return [part.squeeze(1).unflatten(0, (groups, -1)) for part in data.split((keys, keys, values))]

    def _gate_backward(
        self, run: Pass, given: list[Array], gate: Array, into: Array, w: GatedDeltaParameters[Weight]
    ) -> None:
        """`given`: the gradient of the gated output [T, H v], the rule's output [T H, v] and its 1/rms, in whose place the gradient
        of the rule's output [batch, seq, H, v] stays. Puts the gradient of the gate into `into`."""
        ops = run.ops
        grad, recurred, scale = given
        given.clear()
        with ops.fused():
            gates = ops.copy(self._by_head(gate))
            normed = rms_norm(ops, recurred, w.norm.data, self.norm_eps)[0]
            by_head = grad.view(*gates.shape)
            d_normed = (by_head * ops.silu(gates)).view(*recurred.shape)
            ops.silu_backward_(normed.view(*gates.shape).mul_(by_head), gates)
            self._by_head(into).copy_(gates)
            shape = (*gates.shape[:2], -1, self.value_head_dim)
            del gates, normed, grad, by_head
            given.append(ops.upcast(rms_norm_backward(ops, d_normed, recurred, scale, w.norm)).view(*shape))
            del d_normed

    def _rule_inputs_backward(
        self,
        run: Pass,
        found: list[Array],
        inputs: list[Array],
        seen: _Projected,
        into: _Projected,
        w: GatedDeltaParameters[Weight],
        before: Array | None,
    ) -> None:
        """`found`: gradients of q, k, v, g, b, taken out of the list; `inputs`: those themselves; `before`: the halo. Puts the
        gradients of what was projected into `into`; adds the weights'."""
        ops, size = run.ops, self.key_head_dim
        d_q, d_k, d_v, d_g, d_b = found
        found.clear()
        with ops.fused():
            g, b = inputs.pop(-2), inputs.pop()
            inputs.clear()
            into.strengths.copy_((d_b * b * (1 - b)).unflatten(2, into.strengths.shape[2:]))
            w.decay.add((d_g * g).flatten(0, 1).sum(0))
            slopes = self._steps(run, seen, w).sigmoid()
            d_steps = slopes.mul_(d_g).mul_(ops.upcast(w.decay.data).exp()).neg_()
            w.step_bias.add(d_steps.flatten(0, 1).sum(0))
            into.decays.copy_(d_steps.unflatten(2, into.decays.shape[2:]))
            del d_b, d_g, g, b, slopes, d_steps
        with ops.fused():
            tokens, taps = padded(ops, seen.mixed, before, self.kernel), self._taps(run, w)
            positions = positions_of(run.batch, run.parallel)
            convolved = convolve(ops, tokens, taps, positions)
            active = ops.silu(convolved)
            d_active = active.new_empty(active.shape)
            for first, grad, factor in ((0, d_q, size**-0.5), (size, d_k, 1.0)):
                unit, inverse = self._unit(run, active[..., first : first + size])
                scaled = grad * factor
                along = (scaled * unit).sum(-1, keepdim=True)
                d_active[..., first : first + size].copy_(scaled.addcmul_(unit, along, value=-1).mul_(inverse))
                del unit, inverse, scaled, along, grad
            values = self._by_head(d_active[..., 2 * size :])
            values.copy_(d_v.unflatten(2, values.shape[2:4]))
            del values
            del d_q, d_k, d_v, active
            ops.silu_backward_(d_active, convolved)
            del d_active
            d_tokens, d_taps = convolve_backward(ops, convolved, tokens, taps, positions)
            del convolved, tokens, taps, positions
            self._add_taps(d_taps, w)
            given = [split_gradient(run.env, d_tokens, into.mixed)]
            del d_tokens, d_taps
        add_in_front(run.env, given, into.mixed)

    def _add_taps(self, found: Array, w: GatedDeltaParameters[Weight]) -> None:
        """Adds the gradient of `_taps` to that of the weights."""
        weights = found.new_empty(w.convolution.data.shape)
        for part, own in zip(self._channels_of(weights, w), self._channels(found), strict=True):
            part.copy_(own.permute(1, 2, 0))
        w.convolution.add(weights)
