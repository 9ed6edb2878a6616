"""Gated DeltaNet (Yang, Kautz & Hatamizadeh 2024): the delta rule with a decay of every value head, whose output a SiLU opens.

Projections lie by key heads, as in Qwen3-Next, or separately, as in Qwen3.5. Tensor parallelism splits key heads, each with the
value heads that it serves. Symbols are those of `delta_rule.py`, and c = 2 d + r v the channels of a key head that the convolution
sees.
"""

from dataclasses import dataclass
from typing import Any, Literal

from fourfold.model.context.recurrence import stretches
from fourfold.model.kinds.delta_rule import FIRST_STEPS, DeltaParameters, DeltaRule, Own, Projected, T, with_small
from fourfold.model.kinds.kind import Pass
from fourfold.model.operations import Array, Operations
from fourfold.model.parameter import Declared, ParameterSpec, Widths, column, gain, row
from fourfold.model.tensor_parallel import ColumnInput, InputSource, column_backward, gather_tokens, sum_partial
from fourfold.model.weights import Weight


@dataclass(frozen=True)
class GatedDeltaNet(DeltaRule[Own]):
    """All but how projections lie. `step_bias`: its initial values."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel: int = 4
    norm_eps: float = 1e-6
    strongest: float = 1.0
    step_bias: Literal["ones", "log_uniform"] = "ones"

    @property
    def words(self) -> str:
        return "gated delta rule"

    @property
    def divided(self) -> dict[str, int]:
        return {"model.delta_key_heads": self.num_key_heads}

    @property
    def state_flops(self) -> int:
        """A token erases from the state, writes to it and reads it."""
        return 6 * self.num_value_heads * self.key_head_dim * self.value_head_dim

    @property
    def copies(self) -> int:
        """Value heads of a key head."""
        return self.num_value_heads // self.num_key_heads

    @property
    def widths(self) -> tuple[int, int]:
        """G d and H v of all ranks."""
        return self.num_key_heads * self.key_head_dim, self.num_value_heads * self.value_head_dim

    def open(self, ops: Operations, gate: Array) -> Array:
        return ops.silu(gate)

    def open_backward_(self, ops: Operations, grad: Array, gate: Array) -> None:
        ops.silu_backward_(grad, gate)

    def _shared(self, widths: Widths) -> dict[str, Any]:
        """Parameters beside projections: convolution [G d + G d + H v, 1, kernel]."""
        (keys, values), heads, std = self.widths, self.num_value_heads, widths.std
        convolved = (("conv_q", keys), ("conv_k", keys), ("conv_v", values))
        return {
            "output": row("linear_attn.out_proj.weight", widths.hidden, values, widths.residual_std),
            "convolution": tuple(
                ParameterSpec(f"linear_attn.{name}.weight", (n, 1, self.kernel), std, True, 0) for name, n in convolved
            ),
            "decay": ParameterSpec("linear_attn.A_log", (heads,), std, False, 0, log_uniform=(0.01, 16.0)),
            "step_bias": ParameterSpec(
                "linear_attn.dt_bias",
                (heads,),
                None,
                False,
                0,
                softplus_log_uniform=FIRST_STEPS if self.step_bias == "log_uniform" else None,
            ),
            "norm": gain("linear_attn.norm.weight", self.value_head_dim, "always"),
        }

    def _of_rank(self, w: Own) -> tuple[int, int]:
        """(key heads, value heads) that this rank holds."""
        heads = w.decay.data.shape[0]
        return heads // self.copies, heads

    def _rows(self, run: Pass) -> int:
        return int(run.batch.tokens.shape[0] * stretches(run.parallel))


@dataclass(frozen=True)
class GatedDelta(GatedDeltaNet[DeltaParameters[Weight]]):
    """projection [G (2 d + 2 r v) + 2 H, hidden]: of each key head q, k, its values and their gates, then of each key head its
    strengths and decays."""

    def features(self, tp: int) -> dict[str, int]:
        keys, values = self.widths
        return {
            "what a gated delta rule projects / tp": 2 * (keys + values + self.num_value_heads) // tp,
            "delta_value_heads / tp x delta_value_dim": values // tp,
        }

    @property
    def channels(self) -> int:
        """Channels of a key head that are convolved."""
        return 2 * self.key_head_dim + self.copies * self.value_head_dim

    def declare(self, widths: Widths) -> DeltaParameters[Declared]:
        rows = (("in_proj_qkvz", 2 * sum(self.widths)), ("in_proj_ba", 2 * self.num_value_heads))
        projection = tuple(column(f"linear_attn.{name}.weight", n, widths.hidden, widths.std) for name, n in rows)
        return DeltaParameters(projection=projection, **self._shared(widths))

    def project(self, run: Pass, given: list[Array], w: DeltaParameters[Weight]) -> Projected:
        projected = run.env.gemms.linear(gather_tokens(given.pop(), run.parallel).wait(), w.projection.data)
        run.saved.keep(projected=projected)
        return self._split(run, projected, w)

    def projected_again(self, run: Pass, w: DeltaParameters[Weight]) -> Projected:
        return self._split(run, run.saved.take("projected"), w)

    def gradients(self, run: Pass, seen: Projected, w: DeltaParameters[Weight]) -> tuple[list[Array], Projected]:
        tokens = seen.mixed.shape[0] * seen.mixed.shape[1]
        into = seen.mixed.new_empty((tokens, w.projection.data.shape[0]))
        return [into], self._split(run, into, w)

    def project_backward(self, run: Pass, grads: list[Array], w: DeltaParameters[Weight], source: InputSource) -> Array:
        return column_backward(run.env, w.projection, None, grads, source)

    def by_head(self, channels: Array) -> tuple[Array, Array, Array]:
        q, k, v = self._channels(channels)
        return q, k, v.unflatten(-1, (self.copies, self.value_head_dim))

    def taps(self, run: Pass, w: DeltaParameters[Weight]) -> Array:
        data = w.convolution.data
        taps = data.new_empty((self.kernel, self._of_rank(w)[0], self.channels), dtype=run.ops.accumulation_dtype(data))
        for into, part in zip(self._channels(taps), self._channels_of(data, w), strict=True):
            into.copy_(part.permute(2, 0, 1))
        return taps

    def add_taps(self, found: Array, w: DeltaParameters[Weight]) -> None:
        weights = found.new_empty(w.convolution.data.shape)
        for part, own in zip(self._channels_of(weights, w), self._channels(found), strict=True):
            part.copy_(own.permute(1, 2, 0))
        w.convolution.add(weights)

    def _split(self, run: Pass, projected: Array, w: DeltaParameters[Weight]) -> Projected:
        groups, heads = self._of_rank(w)
        values = self.copies * self.value_head_dim
        x = projected.view(self._rows(run), -1, projected.shape[-1])
        of_heads, of_gates = x.split((groups * (self.channels + values), 2 * heads), dim=-1)
        mixed, gate = of_heads.unflatten(-1, (groups, -1)).split((self.channels, values), dim=-1)
        strengths, decays = of_gates.unflatten(-1, (groups, -1)).split((self.copies, self.copies), dim=-1)
        return Projected(mixed, gate.unflatten(-1, (self.copies, self.value_head_dim)), strengths, decays)

    def _channels(self, channels: Array) -> tuple[Array, ...]:
        """[.., G, c] -> views of q, of k and of v."""
        size = self.key_head_dim
        return channels.split((size, size, self.channels - 2 * size), dim=-1)

    def _channels_of(self, data: Array, w: DeltaParameters[Weight]) -> list[Array]:
        """[G d + G d + H v, 1, kernel] -> q's, k's and v's as views [G, ..., kernel]."""
        groups, heads = self._of_rank(w)
        keys, values = groups * self.key_head_dim, heads * self.value_head_dim
        return [part.squeeze(1).unflatten(0, (groups, -1)) for part in data.split((keys, keys, values))]


@dataclass(frozen=True)
class SeparateParameters(DeltaParameters[T]):
    """projection [2 G d + 2 H v, hidden]: all q, all k, all values, all their gates; small [2 H, hidden]: all strengths, all
    decays."""

    small: T


@dataclass(frozen=True)
class SeparateGatedDelta(GatedDeltaNet[SeparateParameters[Weight]]):
    """Strengths and decays are projected in the compute format."""

    def features(self, tp: int) -> dict[str, int]:
        keys, values = self.widths
        return {
            "what a gated delta rule projects / tp": 2 * (keys + values) // tp,
            "delta_value_heads / tp x delta_value_dim": values // tp,
        }

    def declare(self, widths: Widths) -> SeparateParameters[Declared]:
        (keys, values), heads = self.widths, self.num_value_heads

        def projected(**rows: int) -> tuple[ParameterSpec, ...]:
            names = ((f"linear_attn.in_proj_{name}.weight", n) for name, n in rows.items())
            return tuple(column(name, n, widths.hidden, widths.std) for name, n in names)

        large, small = projected(q=keys, k=keys, v=values, z=values), projected(b=heads, a=heads)
        return SeparateParameters(projection=large, small=small, **self._shared(widths))

    def project(self, run: Pass, given: list[Array], w: SeparateParameters[Weight]) -> Projected:
        x = gather_tokens(given.pop(), run.parallel).wait()
        projected, small = run.env.gemms.linear(x, w.projection.data), run.ops.linear(x, w.small.data)
        del x
        run.saved.keep(projected=projected, small=small)
        return self._split(run, projected, small, w)

    def projected_again(self, run: Pass, w: SeparateParameters[Weight]) -> Projected:
        return self._split(run, run.saved.take("projected"), run.saved.take("small"), w)

    def gradients(self, run: Pass, seen: Projected, w: SeparateParameters[Weight]) -> tuple[list[Array], Projected]:
        tokens = seen.mixed.shape[0] * seen.mixed.shape[1]
        large, small = (seen.mixed.new_empty((tokens, each.data.shape[0])) for each in (w.projection, w.small))
        return [large, small], self._split(run, large, small, w)

    def project_backward(
        self, run: Pass, grads: list[Array], w: SeparateParameters[Weight], source: InputSource
    ) -> Array:
        env = run.env
        large, small = grads
        grads.clear()
        inputs = ColumnInput(env, w.projection, source.input())
        arriving = sum_partial(with_small(env, large, w.projection, small, w.small), env.parallel)
        inputs.add_matmul(large, (w.small, small))
        del inputs, large, small
        grad = arriving.wait()
        del arriving
        return source.gradient(lambda: grad)

    def by_head(self, channels: Array) -> tuple[Array, Array, Array]:
        heads = channels.shape[-1] // (2 * self.key_head_dim + self.copies * self.value_head_dim)
        keys, values = heads * self.key_head_dim, heads * self.copies * self.value_head_dim
        q, k, v = channels.squeeze(2).split((keys, keys, values), dim=-1)
        q, k = (x.unflatten(-1, (heads, self.key_head_dim)) for x in (q, k))
        return q, k, v.unflatten(-1, (heads, self.copies, self.value_head_dim))

    def _split(self, run: Pass, projected: Array, small: Array, w: SeparateParameters[Weight]) -> Projected:
        heads = self._of_rank(w)[1]
        values = heads * self.value_head_dim
        large, gates = (x.view(self._rows(run), -1, x.shape[-1]) for x in (projected, small))
        mixed, gate = large.split((large.shape[-1] - values, values), dim=-1)
        strengths, decays = gates.split((heads, heads), dim=-1)
        return Projected(
            mixed.unsqueeze(2), gate.unflatten(-1, (heads, self.value_head_dim)), strengths, decays.unsqueeze(3)
        )
