"""The shapes of operations' results, remembered: torch derives them slowly, and a step repeats few operations many times."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor

_Shape = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Sizes, strides, format."""


class KnownShapes:
    """A cache by operation and arguments. One may serve many ranks."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[bool, tuple[_Shape, ...]]] = {}

    def run(self, func: Callable[..., Any], args: Any, options: Any, written: list[Tensor]) -> Any:
        """The result of an operation on tensors without data that makes no views. `written`: the arguments that it writes."""
        try:
            key = (func, _key(args), _key(options.items()))
            known = self._known.get(key)
        except TypeError:  # an argument that cannot be a key
            return func(*args, **options)
        if known is None:
            result = func(*args, **options)
            outputs = (result,) if isinstance(result, Tensor) else result
            if isinstance(outputs, tuple) and all(isinstance(x, Tensor) for x in outputs) and len(written) <= 1:
                fresh = () if written else tuple(_shape(x) for x in outputs)
                self._known[key] = isinstance(result, Tensor), fresh
            return result
        single, shapes = known
        if written:
            return written[0] if single else (written[0],)
        made = tuple(torch.empty_strided(*shape, dtype=dtype, device="meta") for *shape, dtype in shapes)
        return made[0] if single else made


def flatten(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among values and lists of values."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += flatten(value)
    return found


def _shape(x: Tensor) -> _Shape:
    return tuple(x.shape), tuple(x.stride()), x.dtype


def _key(values: Iterable[Any]) -> tuple[Hashable, ...]:
    return tuple(
        (*_shape(value), value.is_meta)
        if isinstance(value, Tensor)
        else _key(value)
        if isinstance(value, (list, tuple))
        else (type(value), value)
        for value in values
    )
