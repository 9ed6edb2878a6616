"""A tensor without data: shape, strides, format and a storage that views share; and its views.

The methods are torch's, as far as segments call them, and do to shapes, strides and lifetimes what torch's do.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Self

from fourfold.model.recorder.recording import Recording, Storage
from fourfold.model.recorder.strides import dense_strides, inferred, viewed_strides

FORMAT_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "int64": 8, "int32": 4, "bool": 1, "e4m3": 1, "e5m2": 1}


class ShapeView:
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
        return f"ShapeTensor({list(self.shape)}, {self.dtype})"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def strides(self) -> tuple[int, ...]:
        return dense_strides(self.shape) if self.steps is None else self.steps

    def _see(self, shape: Sequence[int], strides: Sequence[int] | None, offset: int = 0) -> Self:
        """A view of as many elements."""
        steps = None if strides is None else tuple(strides)
        return self.__class__(
            self.recording, self.storage, tuple(shape), self.dtype, self.nbytes, steps, self.offset + offset
        )

    def _part(self, shape: tuple[int, ...], strides: tuple[int, ...] | None, offset: int = 0) -> Self:
        """A view of some elements."""
        size = prod(shape) * FORMAT_BYTES[self.dtype]
        return self.__class__(self.recording, self.storage, shape, self.dtype, size, strides, self.offset + offset)

    def copied(self) -> Self:
        """A copy of the elements in memory of their own, by a kernel."""
        raise NotImplementedError

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

    def view(self, *shape: Any) -> Self:
        wanted = inferred(shape if not shape or isinstance(shape[0], int) else shape[0], self.numel())
        if self.steps is None:
            return self._see(wanted, None)
        strides = viewed_strides(self.shape, self.strides, wanted)
        if strides is None:
            raise ValueError(f"{self} with strides {self.strides} cannot be viewed as {wanted}")
        return self._see(wanted, strides)

    def view_as(self, other: "ShapeView") -> Self:
        return self.view(*other.shape)

    def reshape(self, *shape: int) -> Self:
        wanted = inferred(shape, self.numel())
        if self.steps is None:
            return self._see(wanted, None)
        strides = viewed_strides(self.shape, self.steps, wanted)
        return self.copied().view(*wanted) if strides is None else self._see(wanted, strides)

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        start, end = start % len(self.shape), end % len(self.shape)
        return self.reshape(*self.shape[:start], prod(self.shape[start : end + 1]), *self.shape[end + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        dim %= len(self.shape)
        sizes = inferred(sizes, self.shape[dim])
        if self.steps is None:
            return self._see((*self.shape[:dim], *sizes, *self.shape[dim + 1 :]), None)
        strides = [stride * self.strides[dim] for stride in dense_strides(sizes)]
        return self._see(
            (*self.shape[:dim], *sizes, *self.shape[dim + 1 :]),
            (*self.strides[:dim], *strides, *self.strides[dim + 1 :]),
        )

    def narrow(self, dim: int, start: int, length: int) -> Self:
        dim %= len(self.shape)
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        if dim == 0 and self.steps is None:
            return self._part(shape, None, start * prod(self.shape[1:]))
        strides = self.strides
        return self._part(shape, strides, start * strides[dim])

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        full = self.shape[dim]
        if isinstance(sizes, int):
            sizes = [min(sizes, full - start) for start in range(0, full, sizes)]
        parts, start = [], 0
        for size in sizes:
            parts.append(self.narrow(dim, start, size))
            start += size
        assert start == full, (self, sizes)
        return tuple(parts)

    def chunk(self, number: int, dim: int = 0) -> tuple[Self, ...]:
        return self.split(-(-self.shape[dim] // number), dim)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        return tuple(self.narrow(dim, i, 1).squeeze(dim) for i in range(self.shape[dim]))

    def permute(self, *dims: int) -> Self:
        return self._see([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def transpose(self, first: int, second: int) -> Self:
        dims = list(range(len(self.shape)))
        dims[first], dims[second] = dims[second], dims[first]
        return self.permute(*dims)

    def t(self) -> Self:
        return self.transpose(0, 1)

    def diagonal(self, offset: int, first: int, second: int) -> Self:
        """The elements of equal place in both dims, as a last one. `offset`: 0."""
        rest = [dim for dim in range(len(self.shape)) if dim not in (first, second)]
        shape, strides = [self.shape[dim] for dim in rest], [self.strides[dim] for dim in rest]
        shape.append(min(self.shape[first], self.shape[second]))
        return self._part(tuple(shape), (*strides, self.strides[first] + self.strides[second]))

    def unsqueeze(self, dim: int) -> Self:
        dim %= len(self.shape) + 1
        if self.steps is None:
            return self._see((*self.shape[:dim], 1, *self.shape[dim:]), None)
        step = self.shape[dim] * self.strides[dim] if dim < len(self.shape) else 1
        return self._see((*self.shape[:dim], 1, *self.shape[dim:]), (*self.strides[:dim], step, *self.strides[dim:]))

    def unsqueeze_(self, dim: int) -> Self:
        return self.unsqueeze(dim)

    def squeeze(self, dim: int) -> Self:
        dim %= len(self.shape)
        steps = None if self.steps is None else self.steps[:dim] + self.steps[dim + 1 :]
        return self._see(self.shape[:dim] + self.shape[dim + 1 :], steps)

    def expand(self, *sizes: int) -> Self:
        sizes = tuple(sizes)
        shape = (1,) * (len(sizes) - len(self.shape)) + self.shape
        before = (0,) * (len(sizes) - len(self.shape)) + self.strides
        sizes = tuple(own if size == -1 else size for own, size in zip(shape, sizes, strict=True))
        strides = [0 if own != size else stride for own, size, stride in zip(shape, sizes, before, strict=True)]
        return self._see(sizes, strides)  # what is read again is in the cache

    def __getitem__(self, key: Any) -> Self:
        keys = key if isinstance(key, tuple) else (key,)
        shape, strides, offset, dim = list(self.shape), list(self.strides), self.offset, 0
        for each in keys:
            if each is Ellipsis:
                dim += len(self.shape) - len(keys) + 1
            elif isinstance(each, int):
                offset += each % shape[dim] * strides[dim]
                del shape[dim], strides[dim]
            else:
                if not (each.start is None and each.stop is None and each.step is None):
                    start, stop, step = each.indices(shape[dim])
                    offset += start * strides[dim]
                    shape[dim] = max(0, -(-(stop - start) // step))
                    strides[dim] *= step
                dim += 1
        size = prod(shape) * FORMAT_BYTES[self.dtype]
        return self.__class__(self.recording, self.storage, tuple(shape), self.dtype, size, tuple(strides), offset)
