"""Pinned memory of the host: parts of few allocations (`fourfold.program.offload.pinned`), and slots that activations take in
turn.

On a processor both memories are one: nothing is pinned, and every tensor has memory of its own.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fourfold.program.offload.pinned import ALIGNMENT, chunks_of


def pinned_parts(sizes: Sequence[int]) -> list[Tensor]:
    """A part of pinned memory of each size [bytes], not cleared."""
    parts = [torch.empty(0, dtype=torch.uint8) for _ in sizes]
    for chunk in chunks_of(sizes):
        memory = torch.empty(chunk.bytes, dtype=torch.uint8, pin_memory=True)
        for number, offset in chunk.parts:
            parts[number] = memory[offset : offset + sizes[number]]
    return parts


def host_tensors(tensors: Sequence[Mapping[str, Tensor]], pinned: bool) -> list[dict[str, Tensor]]:
    """Zeros in the host's memory of the shapes and formats of tensors, by name. Those of one mapping lie together."""
    if not pinned:
        return [{name: torch.zeros(each.shape, dtype=each.dtype) for name, each in group.items()} for group in tensors]
    regions = pinned_parts([sum(map(_bytes, group.values())) for group in tensors])
    pairs = zip(tensors, regions, strict=True)
    return [dict(zip(group, carved(region.zero_(), group.values(), 1), strict=True)) for group, region in pairs]


def room(tensors: Iterable[Tensor], word: int) -> int:
    """Bytes of tensors one behind the other, each in a multiple of `word` bytes."""
    return sum(-(-_bytes(each) // word) * word for each in tensors)


def carved(memory: Tensor, tensors: Iterable[Tensor], word: int) -> list[Tensor]:
    """Views of `memory` [bytes], as `room` counts them, of the shapes and formats of tensors."""
    views, begin = [], 0
    for each in tensors:
        views.append(memory[begin : begin + _bytes(each)].view(each.dtype).view(each.shape))
        begin += room([each], word)
    return views


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class PinnedSlots:
    """Slots of pinned memory. A copy takes the smallest free one that holds it, and gives it back; what fits in none gets memory of
    its own, which is a slot from then on. `allocated_bytes`: of all, as torch rounds them.

    A slot that is given back may be read by a copy that a stream has still to run: whoever takes it next writes to it on a stream
    that comes after (`host_link`).
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self.allocated_bytes = 0

    def reserve(self, sizes: Sequence[int]) -> None:
        """Makes slots of these bytes, at once, unless there are some."""
        if sizes and not self.allocated_bytes:
            self._free = sorted(pinned_parts(sizes), key=len)
            self.allocated_bytes = sum(chunk.bytes for chunk in chunks_of(sizes))

    def take(self, size: int) -> Tensor:
        """A slot of `size` bytes or more."""
        found = next((n for n, slot in enumerate(self._free) if len(slot) >= size), None)
        if found is not None:
            return self._free.pop(found)
        self.allocated_bytes += sum(chunk.bytes for chunk in chunks_of([size]))
        return pinned_parts([max(size, ALIGNMENT)])[0]

    def give_back(self, slot: Tensor) -> None:
        self._free.append(slot)
        self._free.sort(key=len)
