"""The operations that segments are written over. Two backends run them: `torch_operations` on tensors, `recorder` on shape-only
tensors.

A segment's forward and backward call methods of arrays (views, elementwise arithmetic, reductions: the subset of torch's that
`ShapeTensor` has) and the functions below. On torch they compute. On shape-only tensors (shape, format, lifetime; no torch) they
record kernels, bytes, launches, collectives and live memory. So a pass is written once, and what is executed is what is priced.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from fourfold.config import ModelConfig
from fourfold.config.schema import Element, GemmRecipeName
from fourfold.model.kernels import Array as Array
from fourfold.model.kernels import LossKernels as LossKernels
from fourfold.model.kernels import NormKernels as NormKernels
from fourfold.model.kernels import PointwiseKernels as PointwiseKernels
from fourfold.model.kernels import RecurrenceKernels as RecurrenceKernels

if TYPE_CHECKING:  # it takes numpy, which the planner's commands do without
    from fourfold.model.low_precision import Operand
    from fourfold.model.visible import Visible

Format = Any
"""A backend's number format: a `torch.dtype`, or the name of one (`bf16`, `fp32`, `int64`, `bool`)."""


Item = TypeVar("Item")


@dataclass(frozen=True)
class Groups:
    """Rows sorted by expert. `given`: how many each expert of this rank has, or how to find that from `ends`, for which the host
    may have to wait; `ends` [experts] int32, on the device: where they end."""

    given: tuple[int, ...] | Callable[[Array], tuple[int, ...]]
    ends: Array

    @property
    def number(self) -> int:
        """The number of experts."""
        return int(self.ends.shape[0])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each expert, on the host."""
        return self.given(self.ends) if callable(self.given) else self.given

    @cached_property
    def empty(self) -> Array:
        """Whether an expert has none, [experts, 1, 1], on the device."""
        return (self.ends == self.starts).view(-1, 1, 1)

    @property
    def starts(self) -> Array:
        """Where each expert's rows start [experts], made anew, on the device."""
        starts = self.ends.new_zeros(self.ends.shape)
        starts[1:].copy_(self.ends[:-1])
        return starts

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """(expert, start, end) of every expert that has rows."""
        start = 0
        for expert, size in enumerate(self.sizes):
            if size:
                yield expert, start, start + size
            start += size


class Operations(Protocol):
    """Functions of arrays. Shapes: T tokens, h features; `dim` as in torch."""

    int64: Format
    int32: Format
    boolean: Format

    # Matmuls

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """x [T, in] @ weight [out, in]^T + bias [out] -> [T, out]."""
        ...

    def linear_add(self, residual: Array, x: Array, weight: Array) -> Array:
        """residual [T, out] + x [T, in] @ weight [out, in]^T."""
        ...

    def matmul(self, a: Array, b: Array) -> Array:
        """a [m, k] @ b [k, n] -> [m, n]."""
        ...

    def matmuls(self, a: Array, b: Array) -> Array:
        """a [n, m, k] @ b [n, k, p] -> [n, m, p], n matmuls."""
        ...

    def solve(self, matrices: Array, given: Array, upper: bool = False) -> Array:
        """(I + strictly lower, or upper, part of matrices [n, m, m])^-1 @ given [n, m, p] -> [n, m, p], columns being dense.
        Nothing else of the matrices is read."""
        ...

    def matmul_into(self, a: Array, b: Array, out: Array) -> None:
        """out [m, n] = a [m, k] @ b [k, n]; `out` is neither of them."""
        ...

    def accumulate(self, grad: Array, grad_output: Array, inputs: Array, fresh: bool) -> None:
        """grad [out, in] += grad_output [T, out]^T @ inputs [T, in]; assigned where `fresh`."""
        ...

    def scaled_matmul(self, left: "Operand", right: "Operand", name: GemmRecipeName, dtype: Format) -> Array:
        """left [m, k] @ right [n, k]^T -> [m, n] in `dtype`, by the device's matmul of 8-bit operands. `name`: of the recipe."""
        ...

    def grouped_matmul(self, rows: Array, matrices: Array, groups: Groups) -> Array:
        """rows [m, k], sorted by expert, each with its expert's matrix: matrices [experts, k, n] -> [m, n]."""
        ...

    def grouped_accumulate(self, grad: Array, grad_output: Array, inputs: Array, groups: Groups, fresh: bool) -> None:
        """grad [experts, out, in] += grad_output_e^T @ inputs_e for every expert e; assigned where `fresh`."""
        ...

    # Attention

    def attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        causal: bool,
        scale: float,
        documents: "Visible | None" = None,
        window: int | None = None,
    ) -> tuple[Array, Array]:
        """q [batch, queries, heads, d], k [batch, keys, kv_heads, d], v [batch, keys, kv_heads, value] -> output [batch, queries,
        heads, value], and the log-sum-exp of the scores [batch, queries, heads] in the accumulation format. `documents`: the rows
        laid flat are these documents, each causal by itself; an accelerator takes them in one launch. `window`: of a causal call on
        an accelerator, how many keys a query sees at most, itself the last."""
        ...

    def attend_backward(
        self,
        grad: Array,
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        lse: Array,
        causal: bool,
        scale: float,
        documents: "Visible | None" = None,
        window: int | None = None,
    ) -> tuple[Array, Array, Array]:
        """Gradients of q, k and v. `out` and `lse` are over all keys that the queries see anywhere."""
        ...

    def attend_capped(
        self, q: Array, k: Array, v: Array, causal: bool, scale: float, cap: float
    ) -> tuple[Array, Array]:
        """`attend` with scores s capped: cap x tanh(s / cap)."""
        ...

    def attend_capped_backward(
        self, grad: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, causal: bool, scale: float, cap: float
    ) -> tuple[Array, Array, Array]:
        """Gradients of q, k and v, as those of `attend_backward`."""
        ...

    def largest_score_(
        self,
        into: Array,
        q: Array,
        k: Array,
        causal: bool,
        scale: float,
        documents: "Visible | None" = None,
        window: int | None = None,
    ) -> None:
        """Raises `into`, a scalar, to the largest score that `attend` would see; the product is in q's format."""
        ...

    # A person's own block

    def run_own(
        self,
        model: ModelConfig,
        inputs: list[Array],
        document_lengths: Sequence[Sequence[int]] | None,
        weights: Mapping[str, Any],
        keeps: bool,
    ) -> tuple[Array, Any]:
        """The block that `model.block` names, on inputs x [batch, seq, hidden], cos and sin -> x of the next, and what backward
        needs, None unless it `keeps`. `weights`: `Weight`s by name."""
        ...

    def run_own_backward(self, given: list[Any], weights: Mapping[str, Any]) -> Array:
        """The gradient of x; adds those of the weights. `given`: the output's gradient and what the forward kept, taken out of
        the list."""
        ...

    # Elementwise kernels and reductions beyond arrays' own methods

    def upcast(self, x: Array) -> Array:
        """x in the accumulation format: fp32 for bf16, x itself otherwise."""
        ...

    def accumulation_dtype(self, x: Array) -> Format:
        """The accumulation format of x."""
        ...

    def vector_norm(self, x: Array) -> Array:
        """The Euclidean norm over the last dim, kept with size 1."""
        ...

    def weighted_rows(self, x: Array, weights: Array) -> Array:
        """The sum of every row of x [T, h] weighted by weights [h] -> [T, 1]."""
        ...

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
        """x [..., n] -> (output, mean [..., 1], 1/deviation [..., 1])."""
        ...

    def layer_norm_backward(
        self, grad: Array, x: Array, mean: Array, scale: Array, weight: Array, bias: Array
    ) -> tuple[Array, Array, Array]:
        """Gradients of x, weight and bias."""
        ...

    def silu(self, x: Array) -> Array: ...
    def gelu(self, x: Array) -> Array: ...
    def gelu_exact(self, x: Array) -> Array: ...
    def softplus(self, x: Array) -> Array: ...

    def silu_backward_(self, grad: Array, x: Array) -> None:
        """Puts the gradient of silu(x) in the place of x."""
        ...

    def gelu_backward_(self, grad: Array, x: Array) -> None:
        """Puts the gradient of gelu(x), by its tanh form, in the place of x."""
        ...

    def gelu_exact_backward_(self, grad: Array, x: Array) -> None: ...

    def multiply_into(self, a: Array, b: Array, out: Array) -> None:
        """out = a * b."""
        ...

    def multiply_add_into(self, x: Array, a: Array, b: Array, out: Array) -> None:
        """out = x + a * b."""
        ...

    def eight_bits(self, x: Array, element: Element) -> Array:
        """The nearest numbers of an 8-bit format, ties to even, rounded once. x may be written over."""
        ...

    def logaddexp_(self, x: Array, y: Array) -> None:
        """x = log(exp(x) + exp(y))."""
        ...

    def divide_into(self, a: Array, b: Array, out: Array) -> None:
        """out = a / b."""
        ...

    def largest_magnitude(self, x: Array) -> Array:
        """The largest |x| over the last dim, kept with size 1, in the accumulation format; NaN where one is."""
        ...

    def round_up_to_power_(self, x: Array) -> None:
        """In place on x > 0 in the accumulation format: the least power of two p with x <= 1.75 p; infinity for NaN."""
        ...

    def copy(self, x: Array) -> Array:
        """A contiguous copy."""
        ...

    def concatenate(self, parts: Sequence[Array], dim: int = 0) -> Array: ...
    def flip(self, x: Array, dim: int) -> Array: ...
    def stack(self, parts: Sequence[Array], dim: int = 0) -> Array: ...

    def where(self, condition: Array, x: Array, value: float) -> Array:
        """x where `condition` holds, `value` elsewhere."""
        ...

    # Tokens by index

    def arange(self, start: int, stop: int, like: Array) -> Array:
        """start .. stop - 1, int64, on `like`'s device."""
        ...

    def embedding(self, rows: Array, table: Array) -> Array:
        """table [n, h] at rows [T] -> [T, h]."""
        ...

    def add_rows(self, grad: Array, rows: Array, values: Array) -> None:
        """grad [n, h] += values [T, h] at rows [T], in a fixed order."""
        ...

    def sum_rows(self, places: Array, rows: Array, missing: int | None) -> Array:
        """Row i: the sum of rows [m, h] at places [T, k][i], those of index `missing` left out -> [T, h]."""
        ...

    def take(self, x: Array, index: Array) -> Array:
        """x [n, ...] at index [...] along dim 0."""
        ...

    def put(self, x: Array, index: Array, values: Array) -> None:
        """x [n, ...] at index [m] = values [m, ...]."""
        ...

    def top_indices(self, x: Array, k: int) -> Array:
        """Where the k largest of the last dim are: x [..., n] -> [..., k] int64."""
        ...

    def top_values(self, x: Array, k: int) -> Array:
        """The k largest of the last dim."""
        ...

    def repeat(self, x: Array, counts: Array, total: int) -> Array:
        """x [n], each as often as counts [n] says -> [total]."""
        ...

    def host_counts(self, totals: Array, parts: Sequence[int], rows: int) -> list[tuple[int, ...]]:
        """An integer array on the host, cut in parts of these sizes, each of which counts the same `rows` or fewer. A recorder
        has no data: there each part divides all rows evenly."""
        ...

    def host_sizes(self, ends: Array, rows: int) -> tuple[int, ...]:
        """The sizes of groups that share `rows` and end at `ends`, an integer array, on the host; in a recorder, even ones."""
        ...

    # Properties of the code itself

    @property
    def norms(self) -> NormKernels | None:
        """Kernels of RMSNorm that take the place of the formulas in `model/norm.py`; None: none do."""
        ...

    @property
    def losses(self) -> LossKernels | None:
        """Kernels of cross-entropy that take the place of the formulas in `model/head.py`; None: none do."""
        ...

    @property
    def pointwise(self) -> PointwiseKernels | None:
        """Kernels of SwiGLU and rotary position embedding that take the place of the formulas in `model/feed_forward.py` and
        `model/rope.py`; None: none do."""
        ...

    @property
    def recurrence(self) -> RecurrenceKernels | None:
        """Kernels of the gated delta rule that take the place of the formulas in `model/delta.py`; None: none do."""
        ...

    def on_accelerator(self, x: Array) -> bool:
        """Whether x lies on an accelerator, which needs larger matmuls than a processor's cache wants."""
        ...

    def fused(self, name: str = "") -> AbstractContextManager[None]:
        """Elementwise kernels that a fusing compiler makes one: it reads what comes from outside once and writes what survives
        once. `name`: a part of `work.ElementwisePart`."""
        ...

    def steps(self, number: int, backwards: bool = False) -> Iterator[int]:
        """0 .. number - 1, or from the last to the first, of which each reads what the one before wrote. A recorder runs the body
        once and counts it for all: it must leave live what it found live."""
        ...

    def repeats(self, items: Iterable[Item], alike: Callable[[Item], object]) -> Iterator[Item]:
        """The items, one after the other. A recorder runs the body once for those that are alike and counts it for all: it
        must leave live what it found live."""
        ...


def with_operations(operations: Operations, members: Mapping[str, object]) -> Operations:
    """A backend with other functions, `norms`, `losses`, `pointwise` or `recurrence`, in the place of some of its own, by name."""
    return cast(Operations, SimpleNamespace(**{**vars(operations), **members}))
