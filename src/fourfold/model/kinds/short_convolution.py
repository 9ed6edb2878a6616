"""A gated short convolution in place of attention, as in LFM2 (Liquid AI 2025): a token sees the few before it and no others.

    y = W_out (c * conv(b * x))        b, c, x = W_in h

Tensor parallelism splits channels. Symbols: T tokens of a microbatch, t those whose hidden states this rank has, n its channels.
"""

from dataclasses import dataclass
from typing import TypeVar

from fourfold.model import convolution as conv
from fourfold.model.context.recurrence import stretches
from fourfold.model.kinds.kind import Mixer, Pass
from fourfold.model.operations import Array
from fourfold.model.parameter import Declared, Parameters, ParameterSpec, Widths, column, row
from fourfold.model.tensor_parallel import InputSource, column_backward, gather_tokens, row_parallel
from fourfold.model.weights import Weight

T = TypeVar("T")


@dataclass(frozen=True)
class ShortConvolutionParameters(Parameters[T]):
    """output [hidden, n]; projection [3 n, hidden]: of b, c and x; taps [n, 1, kernel]."""

    output: T
    projection: T
    taps: T


Weights = ShortConvolutionParameters[Weight]


@dataclass(frozen=True)
class ShortConvolution(Mixer):
    """`kernel`: tokens that a token sees, itself the last."""

    hidden_size: int
    kernel: int = 3
    attends = False

    @property
    def words(self) -> str:
        return f"convolution over {self.kernel} tokens"

    @property
    def divided(self) -> dict[str, int]:
        return {"model.hidden_size": self.hidden_size}

    def features(self, tp: int) -> dict[str, int]:
        return {"model.hidden_size / tp": self.hidden_size // tp}

    @property
    def state_flops(self) -> int:
        return 2 * self.kernel * self.hidden_size

    def declare(self, widths: Widths) -> ShortConvolutionParameters[Declared]:
        size, hidden, std = self.hidden_size, widths.hidden, widths.std
        return ShortConvolutionParameters(
            output=row("conv.out_proj.weight", hidden, size, widths.residual_std),
            projection=tuple(column(f"conv.in_proj_{name}.weight", size, hidden, std) for name in ("b", "c", "x")),
            taps=ParameterSpec("conv.conv.weight", (size, 1, self.kernel), std, True, 0),
        )

    def forward(self, run: Pass, given: list[Array], w: Weights, residual: Array | None = None) -> Array:
        projected = run.env.gemms.linear(gather_tokens(given.pop(), run.parallel).wait(), w.projection.data)
        b, c, x = self._split(run, projected)
        front = conv.in_front(run.env, seen := b * x, self.kernel)
        run.saved.keep(projected=projected, front=front)
        flat = self._gated(run, seen, front, c, w)
        del projected, b, c, x, seen, front
        run.saved.keep(gated_output=flat)
        return row_parallel(run.env, flat, w.output, residual)

    def backward(self, run: Pass, grad: Array, w: Weights, source: InputSource) -> Array:
        env, ops, saved = run.env, run.ops, run.saved
        arriving = gather_tokens(grad, run.parallel)
        b, c, x = self._split(run, projected := saved.take("projected"))
        seen, front = b * x, saved.take_if_kept("front")
        if (flat := saved.take_if_kept("gated_output")) is None:
            flat = self._gated(run, seen, front, c, w)
        full = arriving.wait()
        w.output.add_matmul(env.gemms, full, flat)
        del flat, arriving
        gradient = env.gemms.matmul(full, w.output.data).view(*c.shape)
        del full
        into = projected.new_empty(projected.shape)
        d_b, d_c, d_x = self._split(run, into)
        with ops.fused():
            tokens, taps = conv.padded(ops, seen, front, self.kernel), self._taps(run, w)
            positions = conv.positions_of(run.batch, run.parallel)
            d_c.copy_(conv.convolve(ops, tokens, taps, positions).mul_(gradient))
            d_tokens, d_taps = conv.convolve_backward(ops, ops.upcast(gradient) * c, tokens, taps, positions)
            d_seen = d_tokens.new_empty(seen.shape)
            before = [conv.split_gradient(env, d_tokens, d_seen)]
            w.taps.add(d_taps.permute(2, 1, 0).contiguous())
            del gradient, tokens, taps, positions, d_tokens, d_taps, seen, front
        conv.add_in_front(env, before, d_seen)
        with ops.fused():
            d_b.copy_(d_seen * x)
            d_x.copy_(d_seen * b)
        given = [into]
        del into, d_seen, d_b, d_c, d_x, b, c, x, projected
        return column_backward(env, w.projection, None, given, source)

    def _split(self, run: Pass, projected: Array) -> tuple[Array, ...]:
        """b, c and x [rows, seq, 1, n], as views of [T, 3 n]."""
        rows = run.batch.tokens.shape[0] * stretches(run.parallel)
        return projected.unflatten(0, (rows, -1)).unsqueeze(2).chunk(3, dim=-1)

    def _taps(self, run: Pass, w: Weights) -> Array:
        """[kernel, 1, n] in the accumulation format."""
        return run.ops.upcast(w.taps.data).permute(2, 1, 0)

    def _gated(self, run: Pass, seen: Array, front: Array | None, c: Array, w: Weights) -> Array:
        """c * conv(b * x) [T, n]."""
        with run.ops.fused():
            tokens = conv.padded(run.ops, seen, front, self.kernel)
            out = conv.convolve(run.ops, tokens, self._taps(run, w), conv.positions_of(run.batch, run.parallel))
            return out.mul_(c).to(c.dtype).view(-1, c.shape[-1])
