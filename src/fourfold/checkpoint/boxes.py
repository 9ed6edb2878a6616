"""Boxes: the part of a parameter that one model-parallel rank holds, [start, end) along every dim of the whole."""

from collections.abc import Iterable, Sequence
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
