"""The operations of segments on shape-only tensors. `Operations` says what each does; this says what each costs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import TYPE_CHECKING, Any, cast

from fourfold.config import ModelConfig
from fourfold.config.schema import Element, GemmRecipeName
from fourfold.model.operations import Item
from fourfold.model.own.replay import RecordedGraph, replay_backward, replay_forward
from fourfold.model.recorder.capped_attention import capped_backward, capped_forward
from fourfold.model.recorder.kernels import RecordedLosses, RecordedNorms, RecordedPointwise, RecordedRecurrence
from fourfold.model.recorder.recording import Recording, Region, Storage
from fourfold.model.recorder.shape_tensor import FORMAT_BYTES, ShapeTensor
from fourfold.model.shape import SCORE_TILE
from fourfold.model.work import Attention, Elementwise, ElementwisePart
from fourfold.model.work import Item as WorkItem

if TYPE_CHECKING:  # it takes numpy, which the planner's commands do without
    from fourfold.model.low_precision import Operand
    from fourfold.model.visible import Visible


def even_counts(parts: Sequence[int], rows: int) -> list[tuple[int, ...]]:
    """`host_counts` where no values are known: rows are shared evenly."""
    return [tuple(rows // number + (i < rows % number) for i in range(number)) for number in parts]


class RecorderOperations:
    """Everything is written down in one recording, as of an accelerator or of a processor."""

    int64, int32, boolean = "int64", "int32", "bool"

    def __init__(self, recording: Recording, accelerator: bool = False, kernels: bool = False) -> None:
        """`kernels`: formulas have given their place to kernels that read and write every number once."""
        self.recording = recording
        self._accelerator = accelerator
        self.norms = RecordedNorms() if kernels else None
        self.losses = RecordedLosses() if kernels else None
        self.pointwise = RecordedPointwise() if kernels else None
        self.recurrence = RecordedRecurrence(self.matmuls) if accelerator else None

    def outside(self, shape: Sequence[int], dtype: str) -> ShapeTensor:
        """One whose memory is somebody else's: weights, inputs, tables."""
        shape = tuple(shape)
        size = prod(shape) * FORMAT_BYTES[dtype]
        return ShapeTensor(self.recording, Storage(None, size), shape, dtype, size)

    def make(self, shape: Sequence[int], dtype: str) -> ShapeTensor:
        shape = tuple(shape)
        size = prod(shape) * FORMAT_BYTES[dtype]
        return ShapeTensor(self.recording, Storage(self.recording, size), shape, dtype, size)

    # Matmuls

    def linear(self, x: ShapeTensor, weight: ShapeTensor, bias: ShapeTensor | None = None) -> ShapeTensor:
        rows, (columns, inner) = x.shape[0], weight.shape
        assert x.shape[1] == inner, (x, weight)
        out = self.make((rows, columns), x.dtype)
        self.recording.matmul(rows, columns, inner, weight=weight.storage)
        return out

    def linear_add(self, residual: ShapeTensor, x: ShapeTensor, weight: ShapeTensor) -> ShapeTensor:
        out = self.linear(x, weight)
        with self.fused():
            out.add_(residual)
        return out

    def matmul(self, a: ShapeTensor, b: ShapeTensor) -> ShapeTensor:
        assert a.shape[1] == b.shape[0], (a, b)
        out = self.make((a.shape[0], b.shape[1]), a.dtype)
        self.recording.matmul(a.shape[0], b.shape[1], a.shape[1])
        return out

    def matmuls(self, a: ShapeTensor, b: ShapeTensor) -> ShapeTensor:
        assert (a.shape[0], a.shape[2]) == b.shape[:2], (a, b)
        batch, rows, inner, columns = *a.shape, b.shape[2]
        out = self.make((batch, rows, columns), a.dtype)
        self.recording.matmuls(batch, rows, columns, inner)
        return out

    def solve(self, matrices: ShapeTensor, given: ShapeTensor, upper: bool = False) -> ShapeTensor:
        batch, rows, columns = given.shape
        out = self.make((batch, columns, rows), given.dtype).transpose(1, 2)
        self.recording.matmuls(batch, rows, columns, -(-rows // 2))
        return out

    def matmul_into(self, a: ShapeTensor, b: ShapeTensor, out: ShapeTensor) -> None:
        self.recording.matmul(a.shape[0], b.shape[1], a.shape[1])

    def accumulate(self, grad: ShapeTensor, grad_output: ShapeTensor, inputs: ShapeTensor, fresh: bool) -> None:
        rows, columns, inner = grad_output.shape[1], inputs.shape[1], inputs.shape[0]
        assert grad_output.shape[0] == inner, (grad_output, inputs)
        if grad.dtype != inputs.dtype:
            self.make((rows, columns), inputs.dtype)
        self.recording.matmul(rows, columns, inner, accumulates=True)

    def scaled_matmul(self, left: "Operand", right: "Operand", name: GemmRecipeName, dtype: str) -> ShapeTensor:
        (rows, inner), columns = left.numbers.shape, right.numbers.shape[0]
        out = self.make((rows, columns), dtype)
        if name != "fp8":  # scales are laid out as kernels read them
            with self.fused("quantized"):
                for scales in (left.scales, right.scales):
                    for _ in range(3 if name == "mxfp8" else 1):  # to exponents, padded, in pieces
                        scales.copied()
        self.recording.matmul(rows, columns, inner, dtype=name)
        return out

    def grouped_matmul(self, rows: ShapeTensor, matrices: ShapeTensor, groups: Any) -> ShapeTensor:
        experts, inner, columns = matrices.shape
        assert rows.shape[1] == inner, (rows, matrices)
        out = self.make((rows.shape[0], columns), rows.dtype)
        self.recording.matmul(rows.shape[0], columns, inner, groups=experts, weight=matrices.storage)
        return out

    def grouped_accumulate(
        self, grad: ShapeTensor, grad_output: ShapeTensor, inputs: ShapeTensor, groups: Any, fresh: bool
    ) -> None:
        rows, columns, inner = grad_output.shape[1], inputs.shape[1], inputs.shape[0]
        if grad.dtype != inputs.dtype:
            self.make((rows, columns), inputs.dtype)
        self.recording.matmul(rows, columns, inner, accumulates=True, groups=grad.shape[0])

    # Attention

    def attend(
        self,
        q: ShapeTensor,
        k: ShapeTensor,
        v: ShapeTensor,
        causal: bool,
        scale: float,
        documents: "Visible | None" = None,
        window: int | None = None,
    ) -> tuple[ShapeTensor, ShapeTensor]:
        width, value, rows = self._kernel_width(q, v), v.shape[-1], q.shape[:2]
        padded = [self._laid(self._padded(x, width), documents) for x in (q, k, v)]
        self._attend((q, k, v), causal, documents, window, backward=False)
        out, lse = padded[0].empty_like(), self.make(q.shape[:-1], self.accumulation_dtype(q))
        return (out if documents is None else out.unflatten(0, rows))[..., :value], lse

    def attend_backward(
        self,
        grad: ShapeTensor,
        q: ShapeTensor,
        k: ShapeTensor,
        v: ShapeTensor,
        out: ShapeTensor,
        lse: ShapeTensor,
        causal: bool,
        scale: float,
        documents: "Visible | None" = None,
        window: int | None = None,
    ) -> tuple[ShapeTensor, ShapeTensor, ShapeTensor]:
        width = self._kernel_width(q, v)
        padded = [self._laid(self._padded(x, width), documents) for x in (grad, q, k, v, out)]
        self._attend((q, k, v), causal, documents, window, backward=True)
        for tensor in (*padded, lse):
            tensor.storage.read = self.recording.passes
        d_q, d_k, d_v = (self.make((*y.shape[:-1], width), y.dtype)[..., : y.shape[-1]] for y in (q, k, v))
        return d_q, d_k, d_v

    def attend_capped(
        self, q: ShapeTensor, k: ShapeTensor, v: ShapeTensor, causal: bool, scale: float, cap: float
    ) -> tuple[ShapeTensor, ShapeTensor]:
        self._attend((q, k, v), causal, None, None, backward=False)
        return capped_forward(self.make, q, k, v, causal, self.accumulation_dtype(q))

    def attend_capped_backward(
        self, grad: ShapeTensor, q: ShapeTensor, k: ShapeTensor, v: ShapeTensor, out: ShapeTensor, lse: ShapeTensor,
        causal: bool, scale: float, cap: float,
    ) -> tuple[ShapeTensor, ShapeTensor, ShapeTensor]:  # fmt: skip
        self._attend((q, k, v), causal, None, None, backward=True)
        for tensor in (grad, q, k, v, out, lse):
            tensor.storage.read = self.recording.passes
        return capped_backward(self.make, q, k, v, causal, self.accumulation_dtype(q))

    def largest_score_(
        self,
        into: ShapeTensor,
        q: ShapeTensor,
        k: ShapeTensor,
        causal: bool,
        scale: float,
        documents: "Visible | None" = None,
        window: int | None = None,
    ) -> None:
        """A product of all queries with the half of the keys that they see, of which a tile is there at a time and read once."""
        batch, queries, heads, width = q.shape
        keys = k.shape[1]
        together = 1 if documents is not None else batch
        rows, columns = min(SCORE_TILE, batch * queries // together), min(SCORE_TILE, batch * keys // together)
        tiles = [
            self.make((together, heads, rows, width), q.dtype),
            self.make((together, k.shape[2], columns, width), q.dtype),
        ]
        tiles.append(self.make((together, heads, rows, columns), q.dtype))
        tiles += [self.make((rows, columns), "bool") for _ in range(2 * causal)]
        seen = min(window or keys, -(-keys // 2) if causal else keys)
        self.recording.matmuls(batch * heads, queries, seen, width)
        size = batch * heads * queries * seen * FORMAT_BYTES[q.dtype]
        self.recording.work.append(Elementwise(size, size))
        del tiles

    def _attend(
        self,
        inputs: tuple[ShapeTensor, ShapeTensor, ShapeTensor],
        causal: bool,
        documents: "Visible | None",
        window: int | None,
        backward: bool,
    ) -> None:
        """Half of the square is computed where it is causal; elsewhere as many scores as half of twice the keys; with a window, as
        half of fewer. Columns that are padding do not count. Documents of one length, of which a footprint has no others, are one
        kernel."""
        q, k, v = inputs
        batch, queries, heads, _ = q.shape
        keys = k.shape[1] if causal else 2 * k.shape[1]
        squares = Counter((length, length) for length in documents.lengths) if documents else {(queries, keys): batch}
        for (queries, keys), number in squares.items():
            widths = (q.shape[-1], v.shape[-1])
            if window is not None and window < keys:
                keys = window * (2 * keys - window) // keys
            self.recording.attend(Attention(number, queries, keys, heads, k.shape[2], *widths, backward))

    def _laid(self, x: ShapeTensor, documents: "Visible | None") -> ShapeTensor:
        return x if documents is None else x.flatten(0, 1)

    def _kernel_width(self, q: ShapeTensor, v: ShapeTensor) -> int:
        """The one head size that kernels take, as `flash.library.kernel_width`."""
        width = max(q.shape[-1], v.shape[-1])
        return -(-width // 8) * 8 if self._accelerator else width

    def _padded(self, x: ShapeTensor, width: int) -> ShapeTensor:
        if x.shape[-1] == width:
            return x
        out = self.make((*x.shape[:-1], width), x.dtype)
        self.recording.touch((x,), out)
        return out

    # A person's own block

    def run_own(
        self,
        model: ModelConfig,
        inputs: list[ShapeTensor],
        document_lengths: Sequence[Sequence[int]] | None,
        weights: Mapping[str, Any],
        keeps: bool,
    ) -> tuple[ShapeTensor, RecordedGraph | None]:
        return replay_forward(self.recording, model, inputs, document_lengths, weights, keeps)

    def run_own_backward(self, given: list[Any], weights: Mapping[str, Any]) -> ShapeTensor:
        return replay_backward(self.recording, given, weights)

    # Elementwise kernels and reductions

    def upcast(self, x: ShapeTensor) -> ShapeTensor:
        return x.to("fp32") if x.dtype == "bf16" else x

    def accumulation_dtype(self, x: ShapeTensor) -> str:
        return "fp64" if x.dtype == "fp64" else "fp32"

    def vector_norm(self, x: ShapeTensor) -> ShapeTensor:
        return x._reduce(-1, True)

    def weighted_rows(self, x: ShapeTensor, weights: ShapeTensor) -> ShapeTensor:
        out = self.make((x.shape[0], 1), x.dtype)
        self.recording.touch((x, weights), out)
        return out

    def layer_norm(
        self, x: ShapeTensor, weight: ShapeTensor, bias: ShapeTensor, eps: float
    ) -> tuple[ShapeTensor, ShapeTensor, ShapeTensor]:
        out = self.make(x.shape, x.dtype)
        mean, scale = (self.make((*x.shape[:-1], 1), x.dtype) for _ in range(2))
        self.recording.touch((x, x, weight, bias), out)
        return out, mean, scale

    def layer_norm_backward(
        self,
        grad: ShapeTensor,
        x: ShapeTensor,
        mean: ShapeTensor,
        scale: ShapeTensor,
        weight: ShapeTensor,
        bias: ShapeTensor,
    ) -> tuple[ShapeTensor, ShapeTensor, ShapeTensor]:
        out = self.make(x.shape, x.dtype)
        grads = self.make(weight.shape, x.dtype), self.make(bias.shape, x.dtype)
        self.recording.touch((grad, grad, x, x, mean, scale, weight), out)
        return out, *grads

    def silu(self, x: ShapeTensor) -> ShapeTensor:
        return x._map()

    gelu = gelu_exact = softplus = silu

    def silu_backward_(self, grad: ShapeTensor, x: ShapeTensor) -> None:
        x._map_(grad)

    gelu_backward_ = gelu_exact_backward_ = silu_backward_

    def multiply_into(self, a: ShapeTensor, b: ShapeTensor, out: ShapeTensor) -> None:
        self.recording.touch((a, b), out)

    def multiply_add_into(self, x: ShapeTensor, a: ShapeTensor, b: ShapeTensor, out: ShapeTensor) -> None:
        self.recording.touch((x, a, b), out)

    def divide_into(self, a: ShapeTensor, b: ShapeTensor, out: ShapeTensor) -> None:
        self.recording.touch((a, b), out)

    def largest_magnitude(self, x: ShapeTensor) -> ShapeTensor:
        return x._reduce(-1, True, self.accumulation_dtype(x))

    def round_up_to_power_(self, x: ShapeTensor) -> None:
        x._map_()
        x._map_()

    def eight_bits(self, x: ShapeTensor, element: Element) -> ShapeTensor:
        return x.to(element)

    def logaddexp_(self, x: ShapeTensor, y: ShapeTensor) -> None:
        x._map_(y)

    def copy(self, x: ShapeTensor) -> ShapeTensor:
        return x._map()

    def concatenate(self, parts: Sequence[ShapeTensor], dim: int = 0) -> ShapeTensor:
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        out = self.make(shape, parts[0].dtype)
        self.recording.touch(parts, out)
        return out

    def flip(self, x: ShapeTensor, dim: int) -> ShapeTensor:
        out = self.make(x.shape, x.dtype)
        self.recording.touch((x,), out)
        return out

    def stack(self, parts: Sequence[ShapeTensor], dim: int = 0) -> ShapeTensor:
        shape = list(parts[0].shape)
        shape.insert(dim % (len(shape) + 1), len(parts))
        out = self.make(shape, parts[0].dtype)
        self.recording.touch(parts, out)
        return out

    def where(self, condition: ShapeTensor, x: ShapeTensor, value: float) -> ShapeTensor:
        return x._map(condition, dtype=x.dtype)

    # Tokens by index

    def arange(self, start: int, stop: int, like: ShapeTensor) -> ShapeTensor:
        out = self.make((stop - start,), "int64")
        self.recording.touch((), out)
        return out

    def embedding(self, rows: ShapeTensor, table: ShapeTensor) -> ShapeTensor:
        out = self.make((*rows.shape, table.shape[1]), table.dtype)
        self.recording.touch((rows, self.outside(out.shape, out.dtype)), out)
        return out

    def add_rows(self, grad: ShapeTensor, rows: ShapeTensor, values: ShapeTensor) -> None:
        added = self.outside(values.shape, grad.dtype)
        self.recording.touch((rows, values, added), added)

    def sum_rows(self, places: ShapeTensor, rows: ShapeTensor, missing: int | None) -> ShapeTensor:
        out = self.make((places.shape[0], rows.shape[1]), rows.dtype)
        self.recording.touch((places, rows), out)
        return out

    def take(self, x: ShapeTensor, index: ShapeTensor) -> ShapeTensor:
        out = self.make((*index.shape, *x.shape[1:]), x.dtype)
        self.recording.touch((index, self.outside(out.shape, out.dtype)), out)
        x.storage.read = self.recording.passes
        return out

    def put(self, x: ShapeTensor, index: ShapeTensor, values: ShapeTensor) -> None:
        self.recording.touch((values, index), self.outside(values.shape, x.dtype))

    def top_indices(self, x: ShapeTensor, k: int) -> ShapeTensor:
        shape = (*x.shape[:-1], k)
        values, indices = self.make(shape, x.dtype), self.make(shape, "int64")
        self.recording.touch((x, values), indices)
        return indices

    def top_values(self, x: ShapeTensor, k: int) -> ShapeTensor:
        shape = (*x.shape[:-1], k)
        values, indices = self.make(shape, x.dtype), self.make(shape, "int64")
        self.recording.touch((x, indices), values)
        return values

    def repeat(self, x: ShapeTensor, counts: ShapeTensor, total: int) -> ShapeTensor:
        out = self.make((total,), x.dtype)
        self.recording.touch((x, counts), out)
        return out

    def host_counts(self, totals: ShapeTensor, parts: Sequence[int], rows: int) -> list[tuple[int, ...]]:
        return even_counts(parts, rows)

    def host_sizes(self, ends: ShapeTensor, rows: int) -> tuple[int, ...]:
        return even_counts(ends.shape, rows)[0]

    # Properties of the code itself

    def on_accelerator(self, x: ShapeTensor) -> bool:
        return self._accelerator

    def fused(self, name: str = "") -> AbstractContextManager[None]:
        return Region(self.recording, cast(ElementwisePart, name))

    def steps(self, number: int, backwards: bool = False) -> Iterator[int]:
        start = len(self.recording.work)
        yield 0
        self.recording.repeat(start, number)

    def repeats(self, items: Iterable[Item], alike: Callable[[Item], object]) -> Iterator[Item]:
        work = self.recording.work
        known: dict[object, list[WorkItem]] = {}
        for item in items:
            key = alike(item)
            if key in known:
                work.extend(known[key])
                continue
            start = len(work)
            yield item
            known[key] = work[start:]
