"""Gated DeltaNet (Yang, Kautz & Hatamizadeh 2024), as in Qwen3-Next: a recurrence over tokens in place of attention.

The rule's decay and its writing strength are numbers of each value head, and a SiLU opens the output. Two projections give all of
it. Tensor parallelism splits key heads, each with the value heads that it serves. Symbols are those of `delta_rule.py`, and c = 2 d
+ r v the channels of a key head that the convolution sees.
"""

from dataclasses import dataclass

from fourfold.model.context.recurrence import stretches
from fourfold.model.kinds.delta_rule import DeltaParameters, DeltaRule, Projected
from fourfold.model.kinds.kind import Pass
from fourfold.model.operations import Array, Operations
from fourfold.model.parameter import Declared, ParameterSpec, Widths, column, gain, row
from fourfold.model.tensor_parallel import InputSource, column_backward, gather_tokens
from fourfold.model.weights import Weight


@dataclass(frozen=True)
class GatedDelta(DeltaRule[DeltaParameters[Weight]]):
    """projection [G (2 d + 2 r v) + 2 H, hidden]: of each key head q, k, its values and their gates, then of each key head its
    strengths and decays; convolution [G d + G d + H v, 1, kernel]."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel: int = 4
    norm_eps: float = 1e-6

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

    def declare(self, widths: Widths) -> DeltaParameters[Declared]:
        keys, values = self.num_key_heads * self.key_head_dim, self.num_value_heads * self.value_head_dim
        heads, hidden, std = self.num_value_heads, widths.hidden, widths.std
        rows = (("in_proj_qkvz", 2 * keys + 2 * values), ("in_proj_ba", 2 * heads))
        convolved = (("conv_q", keys), ("conv_k", keys), ("conv_v", values))
        return DeltaParameters(
            output=row("linear_attn.out_proj.weight", hidden, values, widths.residual_std),
            projection=tuple(column(f"linear_attn.{name}.weight", n, hidden, std) for name, n in rows),
            convolution=tuple(
                ParameterSpec(f"linear_attn.{name}.weight", (n, 1, self.kernel), std, True, 0) for name, n in convolved
            ),
            decay=ParameterSpec("linear_attn.A_log", (heads,), std, False, 0, log_uniform=(0.01, 16.0)),
            step_bias=ParameterSpec("linear_attn.dt_bias", (heads,), None, False, 0),
            norm=gain("linear_attn.norm.weight", self.value_head_dim, "always"),
        )

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
        taps = data.new_empty((self.kernel, self._heads(w)[0], self.channels), dtype=run.ops.accumulation_dtype(data))
        for into, part in zip(self._channels(taps), self._channels_of(data, w), strict=True):
            into.copy_(part.permute(2, 0, 1))
        return taps

    def add_taps(self, found: Array, w: DeltaParameters[Weight]) -> None:
        weights = found.new_empty(w.convolution.data.shape)
        for part, own in zip(self._channels_of(weights, w), self._channels(found), strict=True):
            part.copy_(own.permute(1, 2, 0))
        w.convolution.add(weights)

    def open(self, ops: Operations, gate: Array) -> Array:
        return ops.silu(gate)

    def open_backward_(self, ops: Operations, grad: Array, gate: Array) -> None:
        ops.silu_backward_(grad, gate)

    def _heads(self, w: DeltaParameters[Weight]) -> tuple[int, int]:
        """(key heads, value heads) that this rank holds."""
        heads = w.decay.data.shape[0]
        return heads // self.copies, heads

    def _split(self, run: Pass, projected: Array, w: DeltaParameters[Weight]) -> Projected:
        rows, (groups, heads) = run.batch.tokens.shape[0] * stretches(run.parallel), self._heads(w)
        values = self.copies * self.value_head_dim
        x = projected.view(rows, -1, projected.shape[-1])
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
        groups, heads = self._heads(w)
        keys, values = groups * self.key_head_dim, heads * self.value_head_dim
        return [part.squeeze(1).unflatten(0, (groups, -1)) for part in data.split((keys, keys, values))]
