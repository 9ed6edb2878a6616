"""Boxes: the part of a parameter that one model-parallel rank holds, [start, end) along every dim of the whole."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod

Box = tuple[tuple[int, int], ...]


def box_shape(box: Box) -> tuple[int, ...]:
    return tuple(end - start for start, end in box)


def box_numel(box: Box) -> int:
    return prod(box_shape(box))


def tiling_problem(shape: Sequence[int], boxes: Iterable[Box]) -> str | None:
    """Why the boxes do not make up a parameter of this shape, each element in exactly one of them, or None where they do.

    Equal boxes count once: ranks may hold copies. The boxes must be a grid, the product of one division of each dim, which even
    splits along dims always are.
    """
    distinct = set(boxes)
    if any(len(box) != len(shape) for box in distinct):
        return "a box has another number of dims than the parameter"
    cells = 1
    for dim, size in enumerate(shape):
        intervals = sorted({box[dim] for box in distinct})
        edge = 0
        for start, end in intervals:
            if start > edge:
                return f"nobody has elements {edge} to {start} of dim {dim}"
            if start < edge or end <= start:
                return f"boxes overlap along dim {dim} at {start}"
            edge = end
        if edge != size:
            return f"nobody has elements {edge} to {size} of dim {dim}" if edge < size else f"a box leaves dim {dim}"
        cells *= len(intervals)
    if cells != len(distinct):
        return f"{cells - len(distinct)} of its {cells} parts are missing"
    return None


def box_slices(box: Box, origin: Box) -> tuple[slice, ...]:
    """The slices that take `box` out of an array which holds `origin`."""
    return tuple(slice(start - base, end - base) for (start, end), (base, _) in zip(box, origin, strict=True))


def intersection(one: Box, other: Box) -> Box | None:
    """The elements of both boxes; None where there are none."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < end for start, end in both) else None


def boxes_of_range(box: Box, start: int, end: int) -> Iterator[tuple[int, Box]]:
    """(first element, box) of the boxes that elements [start, end) of `box`, laid flat row by row, consist of, in order."""
    if start >= end:
        return
    if len(box) == 1:
        yield start, ((box[0][0] + start, box[0][0] + end),)
        return
    base, inner = box[0][0], box[1:]
    row = box_numel(inner)
    first, last = -(-start // row), end // row
    if start < min(first * row, end):
        yield from _in_row(box, first - 1, start, min(end, first * row))
    if first < last:
        yield first * row, ((base + first, base + last), *inner)
    if end > max(last, first) * row:
        yield from _in_row(box, last, max(last, first) * row, end)


def _in_row(box: Box, row: int, start: int, end: int) -> Iterator[tuple[int, Box]]:
    offset, place = row * box_numel(box[1:]), box[0][0] + row
    for first, part in boxes_of_range(box[1:], start - offset, end - offset):
        yield offset + first, ((place, place + 1), *part)


def blocks(source: Box, wanted: Box, full: int, sparse: int) -> Iterator[tuple[int, Box, Box]]:
    """(first element, rows, part) for each block in which `wanted`, inside `source`, is read from `source` laid flat.

    `rows` is a box of consecutive elements of `source`, `part` what is wanted of it. A block has at most `full` elements, or one;
    it has unwanted elements only where rows of at most `sparse` elements hold some.
    """
    row = box_numel(source[1:])
    complete = source[1:] == wanted[1:]
    base, (start, end) = source[0][0], wanted[0]
    if row <= (full if complete else sparse):
        step = max(1, full // row)
        for first in range(start, end, step):
            span = (first, min(first + step, end))
            yield (first - base) * row, (span, *source[1:]), (span, *wanted[1:])
        return
    for place in range(start, end):
        for offset, rows, part in blocks(source[1:], wanted[1:], full, sparse):
            yield (place - base) * row + offset, ((place, place + 1), *rows), ((place, place + 1), *part)
