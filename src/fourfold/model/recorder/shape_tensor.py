"""A tensor without data on which every operation records the kernel that it would be."""

from collections.abc import Sequence
from math import prod
from typing import Any

from fourfold.model.recorder.recording import Storage
from fourfold.model.recorder.strides import broadcast
from fourfold.model.recorder.view import FORMAT_BYTES, ShapeView


class ShapeTensor(ShapeView):
    """Arithmetic, reductions and selections: each one kernel."""

    __slots__ = ()

    def make(self, shape: Sequence[int], dtype: str | None = None) -> "ShapeTensor":
        """A new one, dense, whose storage is live from now on."""
        shape = tuple(shape)
        dtype = dtype or self.dtype
        size = prod(shape) * FORMAT_BYTES[dtype]
        return ShapeTensor(self.recording, Storage(self.recording, size), shape, dtype, size)

    def _map(self, *others: "ShapeTensor | float", dtype: str | None = None) -> "ShapeTensor":
        """A kernel of one output element for each of the broadcast inputs', in the widest of their formats."""
        shape, widest, reads = self.shape, self.dtype, [self]
        for other in others:
            if isinstance(other, ShapeTensor):
                reads.append(other)
                if other.shape != shape:
                    shape = broadcast(shape, other.shape)
                if FORMAT_BYTES[other.dtype] > FORMAT_BYTES[widest]:
                    widest = other.dtype
        out = self.make(shape, dtype or widest)
        self.recording.touch(reads, out)
        return out

    def _map_(self, *others: "ShapeTensor | float") -> "ShapeTensor":
        """`_map` in place."""
        self.recording.touch([self, *[other for other in others if isinstance(other, ShapeTensor)]], self)
        return self

    def _reduce(self, dim: int | None, keepdim: bool, dtype: str | None = None) -> "ShapeTensor":
        shape = list(self.shape)
        if dim is None:
            shape = []
        elif keepdim:
            shape[dim] = 1
        else:
            del shape[dim]
        out = self.make(shape, dtype)
        self.recording.touch((self,), out)
        return out

    def new_empty(self, *shape: Any, dtype: str | None = None) -> "ShapeTensor":
        return self.make(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape, dtype)

    def empty_like(self) -> "ShapeTensor":
        """A new one, dense, whose dims lie in memory in the order of this one's."""
        strides, step = [0] * len(self.shape), 1
        for dim in sorted(range(len(self.shape)), key=self.strides.__getitem__):
            strides[dim] = step
            step *= self.shape[dim]
        out = self.make(self.shape)
        out.steps = tuple(strides)
        return out

    def new_zeros(self, *shape: Any, dtype: str | None = None) -> "ShapeTensor":
        out = self.new_empty(*shape, dtype=dtype)
        self.recording.touch((), out)
        return out

    def new_full(self, shape: Sequence[int], value: float, dtype: str | None = None) -> "ShapeTensor":
        return self.new_zeros(shape, dtype=dtype)

    def new_ones(self, shape: Sequence[int], dtype: str | None = None) -> "ShapeTensor":
        return self.new_zeros(shape, dtype=dtype)

    def copied(self) -> "ShapeTensor":
        return self._map()

    def clone(self) -> "ShapeTensor":
        return self._map()

    def to(self, dtype: str) -> "ShapeTensor":
        if dtype == self.dtype:
            return self
        return self._map(dtype=dtype)

    def contiguous(self) -> "ShapeTensor":
        return self if self.is_contiguous() else self.copied()

    # Arithmetic: each one kernel

    def __add__(self, other: "ShapeTensor | float") -> "ShapeTensor":
        return self._map(other)

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = __and__ = __or__ = __add__

    def __invert__(self) -> "ShapeTensor":
        return self._map()

    def compared(self, other: "ShapeTensor | float") -> "ShapeTensor":
        return self._map(other, dtype="bool")

    __lt__ = __ge__ = differs = compared

    def add_(self, other: "ShapeTensor | float", alpha: float = 1) -> "ShapeTensor":
        return self._map_(other)

    def sub_(self, other: "ShapeTensor | float", alpha: float = 1) -> "ShapeTensor":
        return self._map_(other)

    def mul_(self, other: "ShapeTensor | float") -> "ShapeTensor":
        return self._map_(other)

    div_ = mul_

    def square_(self) -> "ShapeTensor":
        return self._map_()

    rsqrt_ = exp_ = neg_ = tanh_ = square_

    def tril_(self, diagonal: int = 0) -> "ShapeTensor":
        return self._map_()

    def log(self) -> "ShapeTensor":
        return self._map()

    sigmoid = square = exp = log

    def clamp(self, low: float | None = None, high: float | None = None, min: float | None = None) -> "ShapeTensor":
        return self._map()

    def clamp_(self, low: float | None = None, high: float | None = None) -> "ShapeTensor":
        return self._map_()

    def addcmul_(self, a: "ShapeTensor", b: "ShapeTensor", value: float = 1) -> "ShapeTensor":
        return self._map_(a, b)

    def lerp_(self, end: "ShapeTensor", weight: "ShapeTensor") -> "ShapeTensor":
        return self._map_(end, weight)

    def masked_fill(self, mask: "ShapeTensor", value: float) -> "ShapeTensor":
        return self._map(mask)

    def masked_fill_(self, mask: "ShapeTensor", value: float) -> "ShapeTensor":
        return self._map_(mask)

    def copy_(self, other: "ShapeTensor") -> "ShapeTensor":
        self.recording.touch((other,), self)
        return self

    def zero_(self) -> "ShapeTensor":
        self.recording.touch((), self)
        return self

    def fill_(self, value: float) -> "ShapeTensor":
        return self.zero_()

    # Reductions, selections

    def sum(self, dim: int | None = None, keepdim: bool = False, dtype: str | None = None) -> "ShapeTensor":
        return self._reduce(dim, keepdim, dtype)

    def amax(self, dim: int | None = None, keepdim: bool = False) -> "ShapeTensor":
        return self._reduce(dim, keepdim)

    logsumexp = amax

    def softmax(self, dim: int) -> "ShapeTensor":
        return self._map()

    def cumsum(self, dim: int) -> "ShapeTensor":
        return self._map()

    def gather(self, dim: int, index: "ShapeTensor") -> "ShapeTensor":
        out = self.make(index.shape)
        read = self._part(index.shape, None)
        self.recording.touch((read, index), out)
        return out

    def scatter_(self, dim: int, index: "ShapeTensor", source: "ShapeTensor | float") -> "ShapeTensor":
        reads = (index, source) if isinstance(source, ShapeTensor) else (index,)
        self.recording.touch(reads, self._part(index.shape, None))
        return self

    def scatter_add_(self, dim: int, index: "ShapeTensor", source: "ShapeTensor") -> "ShapeTensor":
        written = self._part(index.shape, None)
        self.recording.touch((index, source, written), written)
        return self

    def argsort(self, stable: bool = False) -> "ShapeTensor":
        values, indices = self.make(self.shape), self.make(self.shape, "int64")
        self.recording.touch((self, values), indices)
        return indices
