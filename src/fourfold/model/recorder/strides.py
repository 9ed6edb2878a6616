"""Shapes and strides of views, as torch works them out."""

from collections.abc import Sequence
from math import prod


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


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


def inferred(shape: Sequence[int], numel: int) -> tuple[int, ...]:
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
