"""Footprints of microbatch sizes that were not recorded, on the straight line through sizes that were.

Work and bytes of a segment grow linearly with the sequences of a microbatch. Where three recorded sizes lie on one line in every
number, so do those between: kernels are the same, each number is affine, and a maximum of affine numbers (a workspace) is convex.
"""

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

Recorded = TypeVar("Recorded")
KNOTS = (1, 2, 16)
"""Sequences of the microbatches that are recorded."""


class _Bent(Exception):
    """The three do not lie on one line."""


def between(recorded: tuple[Recorded, Recorded, Recorded], sequences: int) -> Recorded | None:
    """The footprint of a microbatch of so many sequences, from those of `KNOTS`; None where they do not lie on one line."""
    try:
        found: Recorded = _point(*recorded, sequences)
    except _Bent:
        return None
    return found


def _point(first: Any, second: Any, last: Any, sequences: int) -> Any:
    if type(first) is int:
        slope = second - first
        if first + (KNOTS[2] - 1) * slope != last:
            raise _Bent
        return first + (sequences - 1) * slope
    if first == second == last:
        return first
    if type(first) is not type(second) or type(first) is not type(last):
        raise _Bent
    if is_dataclass(first):
        names = [field.name for field in fields(first)]
        values = [_point(getattr(first, name), getattr(second, name), getattr(last, name), sequences) for name in names]
        return type(first)(*values)  # type: ignore[misc]
    if isinstance(first, tuple) and len(first) == len(second) == len(last):
        items = [_point(*each, sequences) for each in zip(first, second, last, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else tuple(items)
    raise _Bent
