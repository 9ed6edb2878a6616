"""A rank's pinned memory of its host, as it is allocated: torch rounds every allocation to a power of two, for each tensor by
itself up to twice what is needed. Here tensors share allocations that are powers of two already, and predictions count those.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fourfold.program import buffers
from fourfold.program.program import Program

ALIGNMENT = 512
"""Bytes at a multiple of which every part begins."""
_SMALL = 1 << 21
"""Bytes of the rest for which one allocation is made whatever it wastes."""
_WASTE = 1 / 16
"""Share of the last allocation that may stay unused."""
_SPARE, _ROUTED_SPARE = 1 / 32, 1 / 4
"""Share by which a slot is larger than its activations, of which a few bytes are not predicted; with experts the router decides."""


@dataclass(frozen=True)
class PinnedChunk:
    """One allocation of `bytes`, a power of two. `parts`: (number, offset) of what lies in it."""

    bytes: int
    parts: tuple[tuple[int, int], ...]


def chunks_of(sizes: Sequence[int]) -> tuple[PinnedChunk, ...]:
    """Allocations that hold parts of these bytes, each in one piece, as few bytes as a simple rule finds: the largest power of two
    in what is left is filled with what fits, largest first."""
    aligned = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    order = sorted((n for n, size in enumerate(aligned) if size), key=lambda n: (-aligned[n], n))
    alone = tuple(PinnedChunk(_above(aligned[n]), ((n, 0),)) for n in order)
    shared = tuple(_shared(aligned, order))
    return min(shared, alone, key=lambda chunks: sum(chunk.bytes for chunk in chunks))


def _shared(sizes: Sequence[int], order: list[int]) -> Iterator[PinnedChunk]:
    while order:
        total, largest = sum(sizes[n] for n in order), sizes[order[0]]
        capacity = _above(total)
        if total > _SMALL and capacity - total > _WASTE * capacity:
            capacity = max(capacity // 2, _above(largest))
        parts, left, end = [], [], 0
        for n in order:
            if end + sizes[n] <= capacity:
                parts.append((n, end))
                end += sizes[n]
            else:
                left.append(n)
        yield PinnedChunk(capacity, tuple(parts))
        order = left


def _above(size: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(size - 1, ALIGNMENT - 1).bit_length()


def allocated_bytes(sizes: Sequence[int]) -> int:
    """Bytes of the allocations that hold parts of these sizes."""
    return sum(chunk.bytes for chunk in chunks_of(sizes))


def state_parts(program: Program) -> list[int]:
    """Bytes of the parts in which every unit's master weights, and its optimizer states, lie in the host's memory."""
    kinds = program.buffer_kinds
    return [kind.bytes for kind in kinds if buffers.on_host(kind.text) and kind.microbatches is None and kind.bytes]


def activation_slots(program: Program, routed: bool) -> list[int]:
    """Bytes of the slots for offloaded activations: as many of each size as are away at once. `routed`: a router decides about
    sizes."""
    if not any(buffers.on_host(kind.text) and kind.microbatches is not None for kind in program.buffer_kinds):
        return []
    sizes = program.buffers
    away: Counter[int] = Counter()
    most: Counter[int] = Counter()
    for pattern, m in program.steps.steps:
        for each in pattern.writes:
            if buffers.on_host(each.text) and (size := sizes[each.of(m)]) and m is not None:
                away[size] += 1
                most[size] = max(most[size], away[size])
        for each in pattern.frees:
            if buffers.on_host(each.text) and m is not None:
                away[sizes[each.of(m)]] -= 1
    spare = _ROUTED_SPARE if routed else _SPARE
    return [int(size * (1 + spare)) for size, count in sorted(most.items()) for _ in range(count)]


def pinned_bytes(program: Program, routed: bool) -> int:
    """Bytes of its host's memory that a rank with a device of its own allocates for what it offloads."""
    return allocated_bytes(state_parts(program)) + allocated_bytes(activation_slots(program, routed))
