"""A tensor without data: shape, strides, format and a storage that views share. Each operation on it records what it would do.

The methods are torch's, as far as segments call them, and do to shapes, strides and lifetimes what torch's do.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from math import prod
from typing import Any

from fourfold.model.recorder.recording import Recording, Storage

FORMAT_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "int64": 8, "int32": 4, "bool": 1}


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class Ghost:
    """Views share a storage, and begin `offset` elements into it. `nbytes`: of its elements; `steps`: its strides, None while
    they are dense."""

    __slots__ = ("dtype", "nbytes", "offset", "recording", "shape", "steps", "storage")

    def __init__(
        self,
        recording: Recording,
        storage: Storage,
        shape: tuple[int, ...],
        dtype: str,
        nbytes: int,
        steps: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> None:
        self.recording = recording
        self.storage = storage
        self.shape = shape
        self.dtype = dtype
        self.nbytes = nbytes
        self.steps = steps
        self.offset = offset

    def __repr__(self) -> str:
        return f"Ghost({list(self.shape)}, {self.dtype})"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def strides(self) -> tuple[int, ...]:
        return dense_strides(self.shape) if self.steps is None else self.steps

    # Making others

    def make(self, shape: Sequence[int], dtype: str | None = None) -> "Ghost":
        """A new one, dense, whose storage is live from now on."""
        shape = tuple(shape)
        dtype = dtype or self.dtype
        size = prod(shape) * FORMAT_BYTES[dtype]
        return Ghost(self.recording, Storage(self.recording, size), shape, dtype, size)

    def _see(self, shape: Sequence[int], strides: Sequence[int] | None, offset: int = 0) -> "Ghost":
        """A view of as many elements."""
        steps = None if strides is None else tuple(strides)
        return Ghost(self.recording, self.storage, tuple(shape), self.dtype, self.nbytes, steps, self.offset + offset)

    def _part(self, shape: tuple[int, ...], strides: tuple[int, ...] | None, offset: int = 0) -> "Ghost":
        """A view of some elements."""
        size = prod(shape) * FORMAT_BYTES[self.dtype]
        return Ghost(self.recording, self.storage, shape, self.dtype, size, strides, self.offset + offset)

    def _map(self, *others: "Ghost | float", dtype: str | None = None) -> "Ghost":
        """A kernel of one output element for each of the broadcast inputs', in the widest of their formats."""
        shape, widest, reads = self.shape, self.dtype, [self]
        for other in others:
            if isinstance(other, Ghost):
                reads.append(other)
                if other.shape != shape:
                    shape = broadcast(shape, other.shape)
                if FORMAT_BYTES[other.dtype] > FORMAT_BYTES[widest]:
                    widest = other.dtype
        out = self.make(shape, dtype or widest)
        self.recording.touch(reads, out)
        return out

    def _map_(self, *others: "Ghost | float") -> "Ghost":
        """The same in place."""
        self.recording.touch([self, *[other for other in others if isinstance(other, Ghost)]], self)
        return self

    def _reduce(self, dim: int | None, keepdim: bool, dtype: str | None = None) -> "Ghost":
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

    def new_empty(self, *shape: Any, dtype: str | None = None) -> "Ghost":
        return self.make(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape, dtype)

    def empty_like(self) -> "Ghost":
        """A new one, dense, whose dims lie in memory in the order of this one's."""
        strides, step = [0] * len(self.shape), 1
        for dim in sorted(range(len(self.shape)), key=self.strides.__getitem__):
            strides[dim] = step
            step *= self.shape[dim]
        out = self.make(self.shape)
        out.steps = tuple(strides)
        return out

    def new_zeros(self, *shape: Any, dtype: str | None = None) -> "Ghost":
        out = self.new_empty(*shape, dtype=dtype)
        self.recording.touch((), out)
        return out

    def new_full(self, shape: Sequence[int], value: float, dtype: str | None = None) -> "Ghost":
        return self.new_zeros(shape, dtype=dtype)

    def new_ones(self, shape: Sequence[int], dtype: str | None = None) -> "Ghost":
        return self.new_zeros(shape, dtype=dtype)

    def clone(self) -> "Ghost":
        return self._map()

    def to(self, dtype: str) -> "Ghost":
        if dtype == self.dtype:
            return self
        return self._map(dtype=dtype)

    def contiguous(self) -> "Ghost":
        return self if self.is_contiguous() else self._map()

    # Views

    def numel(self) -> int:
        return prod(self.shape)

    def is_contiguous(self) -> bool:
        if self.steps is None:
            return True
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def view(self, *shape: Any) -> "Ghost":
        wanted = _inferred(shape if not shape or isinstance(shape[0], int) else shape[0], self.numel())
        if self.steps is None:
            return self._see(wanted, None)
        strides = viewed_strides(self.shape, self.strides, wanted)
        if strides is None:
            raise ValueError(f"{self} with strides {self.strides} cannot be viewed as {wanted}")
        return self._see(wanted, strides)

    def view_as(self, other: "Ghost") -> "Ghost":
        return self.view(*other.shape)

    def reshape(self, *shape: int) -> "Ghost":
        wanted = _inferred(shape, self.numel())
        if self.steps is None:
            return self._see(wanted, None)
        strides = viewed_strides(self.shape, self.steps, wanted)
        return self._map().view(*wanted) if strides is None else self._see(wanted, strides)

    def flatten(self, start: int = 0, end: int = -1) -> "Ghost":
        start, end = start % len(self.shape), end % len(self.shape)
        return self.reshape(*self.shape[:start], prod(self.shape[start : end + 1]), *self.shape[end + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> "Ghost":
        dim %= len(self.shape)
        sizes = _inferred(sizes, self.shape[dim])
        if self.steps is None:
            return self._see((*self.shape[:dim], *sizes, *self.shape[dim + 1 :]), None)
        strides = [stride * self.strides[dim] for stride in dense_strides(sizes)]
        return self._see(
            (*self.shape[:dim], *sizes, *self.shape[dim + 1 :]),
            (*self.strides[:dim], *strides, *self.strides[dim + 1 :]),
        )

    def narrow(self, dim: int, start: int, length: int) -> "Ghost":
        dim %= len(self.shape)
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        if dim == 0 and self.steps is None:
            return self._part(shape, None, start * prod(self.shape[1:]))
        strides = self.strides
        return self._part(shape, strides, start * strides[dim])

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> "tuple[Ghost, ...]":
        whole = self.shape[dim]
        if isinstance(sizes, int):
            sizes = [min(sizes, whole - start) for start in range(0, whole, sizes)]
        parts, start = [], 0
        for size in sizes:
            parts.append(self.narrow(dim, start, size))
            start += size
        assert start == whole, (self, sizes)
        return tuple(parts)

    def chunk(self, number: int, dim: int = 0) -> "tuple[Ghost, ...]":
        return self.split(-(-self.shape[dim] // number), dim)

    def unbind(self, dim: int = 0) -> "tuple[Ghost, ...]":
        return tuple(self.narrow(dim, i, 1).squeeze(dim) for i in range(self.shape[dim]))

    def permute(self, *dims: int) -> "Ghost":
        return self._see([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def transpose(self, first: int, second: int) -> "Ghost":
        dims = list(range(len(self.shape)))
        dims[first], dims[second] = dims[second], dims[first]
        return self.permute(*dims)

    def t(self) -> "Ghost":
        return self.transpose(0, 1)

    def unsqueeze(self, dim: int) -> "Ghost":
        dim %= len(self.shape) + 1
        if self.steps is None:
            return self._see((*self.shape[:dim], 1, *self.shape[dim:]), None)
        step = self.shape[dim] * self.strides[dim] if dim < len(self.shape) else 1
        return self._see((*self.shape[:dim], 1, *self.shape[dim:]), (*self.strides[:dim], step, *self.strides[dim:]))

    def unsqueeze_(self, dim: int) -> "Ghost":
        return self.unsqueeze(dim)

    def squeeze(self, dim: int) -> "Ghost":
        dim %= len(self.shape)
        steps = None if self.steps is None else self.steps[:dim] + self.steps[dim + 1 :]
        return self._see(self.shape[:dim] + self.shape[dim + 1 :], steps)

    def expand(self, *sizes: int) -> "Ghost":
        sizes = tuple(sizes)
        shape = (1,) * (len(sizes) - len(self.shape)) + self.shape
        before = (0,) * (len(sizes) - len(self.shape)) + self.strides
        sizes = tuple(own if size == -1 else size for own, size in zip(shape, sizes, strict=True))
        strides = [0 if own != size else stride for own, size, stride in zip(shape, sizes, before, strict=True)]
        return self._see(sizes, strides)  # what is read again is in the cache

    def __getitem__(self, key: Any) -> "Ghost":
        keys = key if isinstance(key, tuple) else (key,)
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys = (*keys[:at], *(slice(None),) * (len(self.shape) - len(keys) + 1), *keys[at + 1 :])
        view, dim = self, 0
        for each in keys:
            size = view.shape[dim]
            if isinstance(each, int):
                view = view.narrow(dim, each % size, 1).squeeze(dim)
                continue
            if each.start is None and each.stop is None and each.step is None:
                dim += 1
                continue
            start, stop, step = each.indices(size)
            if (start, stop, step) != (0, size, 1):
                count = max(0, -(-(stop - start) // step))
                view = view.narrow(dim, start, count)
                if step != 1:
                    strides = (*view.strides[:dim], view.strides[dim] * step, *view.strides[dim + 1 :])
                    view = view._part(view.shape, strides)
            dim += 1
        return view

    # Arithmetic: each one kernel

    def __add__(self, other: "Ghost | float") -> "Ghost":
        return self._map(other)

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = __and__ = __or__ = __add__

    def __invert__(self) -> "Ghost":
        return self._map()

    def compared(self, other: "Ghost | float") -> "Ghost":
        return self._map(other, dtype="bool")

    __lt__ = __ge__ = differs = compared

    def add_(self, other: "Ghost | float", alpha: float = 1) -> "Ghost":
        return self._map_(other)

    def sub_(self, other: "Ghost | float", alpha: float = 1) -> "Ghost":
        return self._map_(other)

    def mul_(self, other: "Ghost | float") -> "Ghost":
        return self._map_(other)

    div_ = mul_

    def square_(self) -> "Ghost":
        return self._map_()

    rsqrt_ = exp_ = neg_ = square_

    def log(self) -> "Ghost":
        return self._map()

    sigmoid = square = log

    def clamp(self, low: float | None = None, high: float | None = None, min: float | None = None) -> "Ghost":
        return self._map()

    def addcmul_(self, a: "Ghost", b: "Ghost", value: float = 1) -> "Ghost":
        return self._map_(a, b)

    def lerp_(self, end: "Ghost", weight: "Ghost") -> "Ghost":
        return self._map_(end, weight)

    def masked_fill(self, mask: "Ghost", value: float) -> "Ghost":
        return self._map(mask)

    def masked_fill_(self, mask: "Ghost", value: float) -> "Ghost":
        return self._map_(mask)

    def copy_(self, other: "Ghost") -> "Ghost":
        self.recording.touch((other,), self)
        return self

    def zero_(self) -> "Ghost":
        self.recording.touch((), self)
        return self

    # Reductions, selections

    def sum(self, dim: int | None = None, keepdim: bool = False, dtype: str | None = None) -> "Ghost":
        return self._reduce(dim, keepdim, dtype)

    def amax(self, dim: int | None = None, keepdim: bool = False) -> "Ghost":
        return self._reduce(dim, keepdim)

    logsumexp = amax

    def softmax(self, dim: int) -> "Ghost":
        return self._map()

    def cumsum(self, dim: int) -> "Ghost":
        return self._map()

    def gather(self, dim: int, index: "Ghost") -> "Ghost":
        out = self.make(index.shape)
        read = self._part(index.shape, None)
        self.recording.touch((read, index), out)
        return out

    def scatter_(self, dim: int, index: "Ghost", source: "Ghost | float") -> "Ghost":
        reads = (index, source) if isinstance(source, Ghost) else (index,)
        self.recording.touch(reads, self._part(index.shape, None))
        return self

    def scatter_add_(self, dim: int, index: "Ghost", source: "Ghost") -> "Ghost":
        written = self._part(index.shape, None)
        self.recording.touch((index, source, written), written)
        return self

    def argsort(self, stable: bool = False) -> "Ghost":
        values, indices = self.make(self.shape), self.make(self.shape, "int64")
        self.recording.touch((self, values), indices)
        return indices


def copies(values: Any, made: dict[int, Storage]) -> Any:
    """The same in storages of its own: ghosts, and what is made of them. `made`: by the identity of those copied so far."""
    if isinstance(values, Ghost):
        storage = values.storage
        if storage.recording is None:
            return values
        own = made.get(id(storage))
        if own is None:
            own = made[id(storage)] = Storage(values.recording, storage.bytes)
        return Ghost(values.recording, own, values.shape, values.dtype, values.nbytes, values.steps, values.offset)
    if isinstance(values, tuple) and not hasattr(values, "_fields"):
        return tuple([copies(each, made) for each in values])
    if is_dataclass(values) and not isinstance(values, type):
        changed = {f.name: copies(getattr(values, f.name), made) for f in fields(values)}
        return type(values)(**changed)
    return values


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if a == b or not b:
        return a
    if len(a) < len(b):
        a, b = b, a
    b = (1,) * (len(a) - len(b)) + b
    for one, other in zip(a, b, strict=True):
        if one != other and one != 1 and other != 1:
            raise ValueError(f"shapes {a} and {b} do not broadcast")
    return tuple(one if other == 1 else other for one, other in zip(a, b, strict=True))


def _inferred(shape: Sequence[int], numel: int) -> tuple[int, ...]:
    if -1 not in shape:
        return tuple(shape)
    known = -prod(shape)
    return tuple(numel // known if size == -1 else size for size in shape)


def viewed_strides(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of a view of another shape; None where the elements would have to be copied. Dims that are dense with each other
    make one run, and the wanted dims must divide the runs."""
    runs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == stride * size:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    if prod(shape) != prod(wanted):
        raise ValueError(f"{tuple(shape)} has not as many elements as {tuple(wanted)}")
    result: list[int] = []
    left, step = runs.pop() if runs else (1, 1)
    for size in reversed(wanted):
        if left == 1 and runs and size != 1:
            left, step = runs.pop()
        if size != 1 and left % size:
            return None
        result.append(step)
        step *= size
        left //= size
    return tuple(reversed(result))
