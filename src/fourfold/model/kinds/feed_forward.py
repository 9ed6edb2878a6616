"""Dense feed-forwards: SwiGLU (Shazeer 2020), and the one without a gate (Vaswani et al. 2017).

Symbols: T tokens of a microbatch, t those whose hidden states this rank has, f this rank's part of ffn.
"""

from dataclasses import dataclass
from typing import TypeVar

from fourfold.model.kinds.kind import Pass
from fourfold.model.operations import Array
from fourfold.model.parameter import Declared, Parameters, Widths, bias, column, row, split_bias
from fourfold.model.swiglu import (
    Activation,
    Gate,
    activate,
    activate_backward_,
    swiglu,
    swiglu_again,
    swiglu_backward_by_blocks,
)
from fourfold.model.tensor_parallel import InputSource, add_bias, column_backward, gather_tokens, row_parallel
from fourfold.model.weights import Weight

T = TypeVar("T")


@dataclass(frozen=True)
class GatedParameters(Parameters[T]):
    """gate_up [2 ffn, hidden], down [hidden, ffn], this rank's part of ffn."""

    gate_up: T
    down: T


@dataclass(frozen=True)
class GatedFeedForward:
    """(activation(x W_gate) * x W_up) W_down."""

    ffn_size: int
    prefix: str = "mlp."
    activation: Gate = "silu"

    @property
    def words(self) -> str:
        return f"feed-forward of {self.ffn_size:,}"

    def declare(self, widths: Widths) -> GatedParameters[Declared]:
        inputs = (f"{self.prefix}{name}.weight" for name in ("gate_proj", "up_proj"))
        return GatedParameters(
            gate_up=tuple(column(name, self.ffn_size, widths.hidden, widths.std) for name in inputs),
            down=row(f"{self.prefix}down_proj.weight", widths.hidden, self.ffn_size, widths.residual_std),
        )

    def forward(
        self, run: Pass, given: list[Array], w: GatedParameters[Weight], residual: Array | None = None
    ) -> Array:
        """residual + the output. `given`: x [t, hidden], taken out of the list -> [t, hidden]."""
        gate_up = run.env.gemms.linear(gather_tokens(given.pop(), run.parallel).wait(), w.gate_up.data)  # [T, 2 f]
        run.saved.keep(gate_up=gate_up)
        with run.ops.fused():
            down_input = swiglu(run.ops, gate_up, self.activation)
        del gate_up
        run.saved.keep(down_input=down_input)
        return row_parallel(run.env, down_input, w.down, residual)

    def backward(self, run: Pass, grad: Array, w: GatedParameters[Weight], source: InputSource) -> Array:
        """grad [t, hidden] of the output -> the gradient of the residual stream; adds the weights' gradients."""
        ops, gemms = run.ops, run.env.gemms
        arriving = gather_tokens(grad, run.parallel)
        gate_up, down_input = run.saved.take("gate_up"), run.saved.take_if_kept("down_input")
        activated = None
        if down_input is None:
            activated, down_input = swiglu_again(ops, gate_up, self.activation)
        full = arriving.wait()
        w.down.add_matmul(gemms, full, down_input)
        del down_input, arriving
        grad_down_input = gemms.matmul(full, w.down.data)
        del full
        given = [grad_down_input, activated]
        del grad_down_input, activated
        swiglu_backward_by_blocks(ops, given, gate_up, self.activation)
        given = [gate_up]
        del gate_up
        return column_backward(run.env, w.gate_up, None, given, source)


@dataclass(frozen=True)
class PlainParameters(Parameters[T]):
    """up [ffn, hidden], down [hidden, ffn], up_bias [ffn], this rank's part of ffn; down_bias [hidden] is unsplit on every rank."""

    up: T
    down: T
    up_bias: T | None
    down_bias: T | None


@dataclass(frozen=True)
class PlainFeedForward:
    """activation(x W_up + b_up) W_down + b_down."""

    ffn_size: int
    activation: Activation = "gelu"
    bias: bool = False

    @property
    def words(self) -> str:
        return f"feed-forward of {self.ffn_size:,}"

    def declare(self, widths: Widths) -> PlainParameters[Declared]:
        return PlainParameters(
            up=column("mlp.up_proj.weight", self.ffn_size, widths.hidden, widths.std),
            down=row("mlp.down_proj.weight", widths.hidden, self.ffn_size, widths.residual_std),
            up_bias=split_bias("mlp.up_proj.bias", self.ffn_size) if self.bias else None,
            down_bias=bias("mlp.down_proj.bias", widths.hidden) if self.bias else None,
        )

    def forward(
        self, run: Pass, given: list[Array], w: PlainParameters[Weight], residual: Array | None = None
    ) -> Array:
        """residual + the output. `given`: x [t, hidden], taken out of the list -> [t, hidden]."""
        added = w.up_bias.data if w.up_bias is not None else None
        up = run.env.gemms.linear(gather_tokens(given.pop(), run.parallel).wait(), w.up.data, added)
        down_input = activate(run.ops, up, self.activation)
        run.saved.keep(up=up, down_input=down_input)
        del up
        return row_parallel(run.env, down_input, w.down, residual, w.down_bias)

    def backward(self, run: Pass, grad: Array, w: PlainParameters[Weight], source: InputSource) -> Array:
        """grad [t, hidden] of the output -> the gradient of the residual stream; adds the weights' gradients."""
        ops, gemms = run.ops, run.env.gemms
        arriving = gather_tokens(grad, run.parallel)
        add_bias(ops, w.down_bias, grad)
        up, down_input = run.saved.take("up"), run.saved.take_if_kept("down_input")
        if down_input is None:
            down_input = activate(ops, up, self.activation)
        full = arriving.wait()
        w.down.add_matmul(gemms, full, down_input)
        del down_input, arriving
        grad_down_input = gemms.matmul(full, w.down.data)
        del full
        activate_backward_(ops, grad_down_input, up, self.activation)  # `up` now holds its own gradient
        del grad_down_input
        given = [up]
        del up
        return column_backward(run.env, w.up, w.up_bias, given, source)
