"""Storage of what an optimizer keeps in narrower formats than it computes in.

A state in bf16 is rounded stochastically: up with the probability of what is cut off, so that its mean is right and averages with a
small share of the new (beta2 = 0.999) do not stand still. The random bits are a function of parameter, element, role and update,
so that all replicas round alike, under every layout, and a run that is resumed rounds as it would have. Elements of one update have
places on one low-discrepancy sequence (Weyl 1916); its beginning is drawn anew for every update.

Master weights in halves are the bf16 weights that are computed with and 16 bits of remainder, exactly the fp32 numbers.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from fourfold.layout import FlatLayout, LocalParameter
from fourfold.model import halves

_STRIDE = 0x9E3779B1
"""2**32 over the golden ratio: multiples of it, modulo 2**32, lie as evenly as can be."""
_WORD = 1 << 32


class Stored(Protocol):
    """Elements of a state as they lie in memory."""

    def load(self) -> Tensor:
        """Elements in the format of the arithmetic: themselves where they are in it, else a copy."""
        ...

    def store(self, values: Tensor, update: int) -> None:
        """Keeps what `load` gave, changed by update number `update`. Writes over `values`."""
        ...


@dataclass(frozen=True)
class Plain:
    """Elements in the format of the arithmetic."""

    tensor: Tensor

    def load(self) -> Tensor:
        return self.tensor

    def store(self, values: Tensor, update: int) -> None:
        """Nothing: they were changed in place."""


@dataclass(frozen=True)
class SplitWeights:
    """Master weights in halves: `weights` [n], bf16, and `remainders` [n], int16."""

    weights: Tensor
    remainders: Tensor

    def load(self) -> Tensor:
        return halves.join_halves(self.weights, self.remainders)

    def store(self, values: Tensor, update: int) -> None:
        halves.split_halves(values, self.weights, self.remainders)


@dataclass(frozen=True)
class Rounded:
    """A state in bf16, `tensor` [n], of elements of one parameter. `role`: the state's name; `dtype`: of the arithmetic."""

    tensor: Tensor
    elements: "Elements"
    role: str
    dtype: torch.dtype

    def load(self) -> Tensor:
        return self.tensor.to(self.dtype)

    def store(self, values: Tensor, update: int) -> None:
        noise = self.elements.places(self.tensor.device, self._beginning(update))
        noise.bitwise_right_shift_(16).bitwise_and_(0xFFFF)
        noise.add_(values.float().view(torch.int32))
        self.tensor.view(torch.int16).copy_(noise.bitwise_right_shift_(16))

    def _beginning(self, update: int) -> int:
        text = f"{self.elements.parameter.name}/{self.role}/{update}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


@dataclass(frozen=True)
class Elements:
    """Elements [start, end) of a rank's part of a parameter, laid flat; `coordinates`: the rank's."""

    parameter: LocalParameter
    start: int
    end: int
    coordinates: Mapping[str, int]

    def places(self, device: torch.device, beginning: int) -> Tensor:
        """int32 [end - start]: each element's number in the full parameter, times the stride, plus `beginning`, modulo 2**32."""
        out = torch.empty(self.end - self.start, dtype=torch.int32, device=device)
        inner = max((dim for dim, _, _ in self.parameter.splits), default=0)
        run = prod(self.parameter.shape[inner:])  # elements that follow each other in the full parameter too
        position = self.start
        while position < self.end:
            row, within = divmod(position, run)
            target = out[position - self.start :]
            rows = (self.end - position) // run if within == 0 else 0
            if rows > 1:
                target = target[: rows * run]
                begins = self._rows(inner, device)[row : row + rows].mul_(_wrapped(_STRIDE)).add_(_wrapped(beginning))
                along = _fill_multiples(torch.empty(run, dtype=torch.int32, device=device))
                torch.add(begins[:, None], along, out=target.view(rows, run))
            else:
                target = target[: min(run - within, self.end - position)]
                first = self._number(inner, row) + within
                _fill_multiples(target).add_(_wrapped(beginning + _STRIDE * first))
            position += len(target)
        return out

    def _number(self, inner: int, row: int) -> int:
        """The number in the full parameter of the first element of a row before dim `inner`."""
        shape, own, box = self.parameter.spec.shape, self.parameter.shape, self.parameter.box(self.coordinates)
        number, stride = box[inner][0], shape[inner]
        for dim in reversed(range(inner)):
            row, index = divmod(row, own[dim])
            number += (box[dim][0] + index) * stride
            stride *= shape[dim]
        return number * prod(shape[inner + 1 :])

    def _rows(self, inner: int, device: torch.device) -> Tensor:
        """int32 [rows]: `_number` of every row, modulo 2**32."""
        shape, box = self.parameter.spec.shape, self.parameter.box(self.coordinates)
        numbers = torch.zeros((), dtype=torch.int32, device=device)
        for dim in range(inner):
            first, size = box[dim][0], self.parameter.shape[dim]
            own = torch.arange(first, first + size, dtype=torch.int32, device=device)
            numbers = numbers[..., None] * _wrapped(shape[dim]) + own
        return (numbers * _wrapped(shape[inner]) + box[inner][0]).reshape(-1) * _wrapped(prod(shape[inner + 1 :]))


def _fill_multiples(out: Tensor) -> Tensor:
    """Fills int32 [n] with 0, 1, 2, ... times the stride, modulo 2**32."""
    torch.arange(len(out), dtype=torch.int32, device=out.device, out=out)
    return out.mul_(_wrapped(_STRIDE))


def _wrapped(number: int) -> int:
    """The number modulo 2**32, as a signed one."""
    return (number + (_WORD >> 1)) % _WORD - (_WORD >> 1)


@dataclass(frozen=True)
class NarrowShard:
    """How a shard's states are stored. `chunk`: elements that are computed with at once; `weights`: the shard in bf16, where master
    weights lie in halves."""

    flat: FlatLayout
    index: int
    coordinates: Mapping[str, int]
    dtype: torch.dtype
    chunk: int
    weights: Tensor | None = None

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int, Elements]]:
        """(first, last, of which elements) of pieces of the shard's elements [first, last), of one parameter each. Padding is in
        none."""
        start = self.flat.shard_range(self.index)[0]
        for parameter, begin, end in self.flat.ranges():
            low, high = max(first + start, begin), min(last + start, end)
            for at in range(low, high, self.chunk):
                until = min(at + self.chunk, high)
                yield at - start, until - start, Elements(parameter, at - begin, until - begin, self.coordinates)

    def master(self, remainders: Tensor, first: int, last: int) -> Stored:
        """The master weights of elements [first, last)."""
        own = remainders[first:last]
        return Plain(own) if self.weights is None else SplitWeights(self.weights[first:last], own)

    def state(self, tensor: Tensor, role: str, elements: Elements) -> Stored:
        """A state, `tensor` [n], of these elements."""
        return Rounded(tensor, elements, role, self.dtype) if tensor.dtype != self.dtype else Plain(tensor)

    def round_state(self, tensor: Tensor, role: str, values: Tensor, first: int, last: int, update: int) -> None:
        """Stores elements [first, last) of a state of the full shard, `tensor` [shard], from `values` [shard]."""
        for low, high, elements in self.pieces(first, last):
            self.state(tensor[low:high], role, elements).store(values[low:high], update)
