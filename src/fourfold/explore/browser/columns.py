"""Columns of numbers as the planner uses numpy's, in Python alone: no index of packages has numpy for WebAssembly.

The functions and methods have numpy's names, and give what numpy gives to the last bit (`tests/explore/browser/test_columns.py`
asks both). They have what the planner, the schedules' slots and the page's documents ask for, and refuse the rest. Differences:
integers have no width, numbers that are compared or sorted are no NaN, and of 0.0 and -0.0 either is the greater.
"""

import math
import operator
import sys
from array import array as packed_array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, partialmethod
from itertools import accumulate, chain, compress, repeat
from typing import Any, NamedTuple

inf = math.inf


class NumberKind(NamedTuple):
    """A kind of number. `code`: how `array` packs it; `rank`: of two kinds, that with the higher one has both's numbers."""

    name: str
    code: str
    rank: int
    cast: Callable[[Any], Any]

    def newbyteorder(self, order: str) -> "NumberKind":
        """The kind with its bytes in an order: WebAssembly's own is the little-endian one."""
        if order != "<" or sys.byteorder != "little":
            raise NotImplementedError(
                f"byte order {order!r} on a {sys.byteorder}-endian machine; allowed: '<' on a little-endian one"
            )
        return self


bool_ = NumberKind("bool", "b", 0, bool)
uint8 = NumberKind("uint8", "B", 1, int)
uint16 = NumberKind("uint16", "H", 2, int)
int32 = NumberKind("int32", "i", 3, int)
int64 = NumberKind("int64", "q", 4, int)
float64 = NumberKind("float64", "d", 5, float)
_KINDS: dict[Any, NumberKind] = {each.name: each for each in (bool_, uint8, uint16, int32, int64, float64)}
_KINDS |= {each: each for each in tuple(_KINDS.values())} | {bool: bool_, int: int64, float: float64}


def dtype(stated: Any) -> NumberKind:
    """The kind of a name, or of a type of Python."""
    return _KINDS[stated]


_kind = dtype
"""Where a parameter has that name."""


def _kind_of(numbers: Sequence[Any]) -> NumberKind:
    """The kind that holds all of some Python numbers."""
    types = set(map(type, numbers))
    if float in types or not types:
        return float64
    return int64 if int in types else bool_


class ndarray:
    """Numbers [shape] of a kind, in the order of their last index, then the last but one."""

    __slots__ = ("dtype", "numbers", "shape")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, numbers: list[Any], kind: NumberKind, shape: tuple[int, ...] | None = None) -> None:
        self.numbers, self.dtype, self.shape = numbers, kind, (len(numbers),) if shape is None else shape

    def __repr__(self) -> str:
        return f"array({self.tolist()!r}, dtype={self.dtype.name})"

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return len(self.numbers)

    @property
    def T(self) -> "ndarray":
        """A table [rows, columns] as [columns, rows]."""
        rows, columns = self.shape
        return ndarray(
            [each for column in range(columns) for each in self.numbers[column::columns]], self.dtype, (columns, rows)
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numbers) if len(self.shape) == 1 else map(self._row, range(self.shape[0]))

    def __bool__(self) -> bool:
        if len(self.numbers) != 1:
            raise ValueError(f"the truth of {len(self.numbers)} numbers; what works: any() or all()")
        return bool(self.numbers[0])

    def tolist(self) -> list[Any]:
        """The numbers as lists of lists."""
        return list(self.numbers) if len(self.shape) == 1 else [each.tolist() for each in self]

    def tobytes(self) -> bytes:
        """The numbers as bytes, without gaps."""
        return packed_array(self.dtype.code, self.numbers).tobytes()

    def astype(self, kind: Any) -> "ndarray":
        """The numbers as another kind; fractions are cut off. Those that it cannot hold wrap around, as numpy's do."""
        found = _kind(kind)
        numbers = list(map(found.cast, self.numbers))
        if 0 < found.rank < int64.rank:
            bits = 8 * packed_array(found.code).itemsize
            low = -(1 << bits - 1) if found.code.islower() else 0
            numbers = [(each - low) % (1 << bits) + low for each in numbers]
        return ndarray(numbers, found, self.shape)

    def _row(self, index: int) -> "ndarray":
        shape = self.shape[1:]
        size, place = math.prod(shape), range(self.shape[0])[index]
        return ndarray(self.numbers[place * size : (place + 1) * size], self.dtype, shape)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            return self._of_several(key)
        if len(self.shape) > 1:
            if isinstance(key, int):
                return self._row(key)
            raise NotImplementedError(f"{key!r} of {len(self.shape)} dims; allowed: an integer, or a key for every dim")
        if isinstance(key, int | slice):
            found = self.numbers[key]
            return found if isinstance(key, int) else ndarray(found, self.dtype)
        return ndarray(self._chosen(self.numbers, key), self.dtype)

    @staticmethod
    def _chosen(numbers: list[Any], key: Any) -> list[Any]:
        """The numbers under a mask, or at places."""
        if isinstance(key, ndarray) and key.dtype is bool_:
            if len(key) != len(numbers):
                raise IndexError(f"a mask of {len(key)} for {len(numbers)} numbers")
            return list(compress(numbers, key.numbers))
        return list(map(numbers.__getitem__, key))

    def _of_several(self, keys: tuple[Any, ...]) -> "ndarray":
        if isinstance(keys[0], slice) and keys[0] == slice(None) and len(keys) == len(self.shape) == 2:
            rows = [
                row.numbers[keys[1]] if isinstance(keys[1], int) else self._chosen(row.numbers, keys[1]) for row in self
            ]
            if isinstance(keys[1], int):
                return ndarray(rows, self.dtype)
            return ndarray([*chain.from_iterable(rows)], self.dtype, (self.shape[0], len(rows[0])))
        return ndarray(list(map(self.numbers.__getitem__, self._places(keys))), self.dtype)

    def _places(self, keys: tuple[Any, ...]) -> list[int]:
        """The places of numbers whose every index a key states: an integer, or an array of them."""
        counts = {len(key) for key in keys if isinstance(key, ndarray)}
        if len(keys) != len(self.shape) or len(counts) != 1:
            raise NotImplementedError(
                f"{keys!r} of {len(self.shape)} dims; allowed: an integer or an array for every dim"
            )
        found = [0] * counts.pop()
        for key, size in zip(keys, self.shape, strict=True):
            own: Iterable[Any] = key.numbers if isinstance(key, ndarray) else repeat(key)
            found = [
                place * size + (each if each >= 0 else each + size) for place, each in zip(found, own, strict=False)
            ]
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, tuple):
            places: Iterable[int] = self._places(key)
        elif isinstance(key, ndarray) and key.dtype is bool_:
            places = compress(range(len(self.numbers)), key.numbers)
        elif isinstance(key, slice):
            places = range(len(self.numbers))[key]
        else:
            places = [key] if isinstance(key, int) else key
        values = value if isinstance(value, ndarray) else repeat(value)
        for place, each in zip(places, values, strict=False):
            self.numbers[place] = self.dtype.cast(each)

    def any(self) -> bool:
        """Whether one of them holds."""
        return any(self.numbers)

    def all(self) -> bool:
        """Whether all of them hold."""
        return all(self.numbers)

    def sum(self) -> int:
        """The sum of integers, or how many hold; of fractions numpy's own depends on their number."""
        if self.dtype is float64:
            raise NotImplementedError("the sum of fractions; allowed: of integers")
        return sum(self.numbers)

    def min(self) -> Any:
        """The least of them."""
        return min(self.numbers)

    def max(self) -> Any:
        """The most of them."""
        return max(self.numbers)

    def argmin(self) -> int:
        """The place of the least, of equal ones the first."""
        return self.numbers.index(min(self.numbers))

    def argmax(self) -> int:
        """The place of the most, of equal ones the first."""
        return self.numbers.index(max(self.numbers))

    def __neg__(self) -> "ndarray":
        return ndarray(list(map(operator.neg, self.numbers)), self.dtype, self.shape)

    def __invert__(self) -> "ndarray":
        if self.dtype is not bool_:
            raise NotImplementedError(f"~ of {self.dtype.name}; allowed: of bool")
        return ndarray(list(map(operator.not_, self.numbers)), bool_, self.shape)


Numbers = ndarray | int | float
"""An array, or a number that stands for as many as the other side has."""


def _kind_with(value: Any) -> NumberKind:
    return value.dtype if isinstance(value, ndarray) else _kind(type(value))


def _together(kind: NumberKind, *values: Any) -> tuple[list[Iterable[Any]], tuple[int, ...]]:
    """The numbers of several operands as one kind, and the shape that the arrays among them have. Raises `ValueError`."""
    shapes = {value.shape for value in values if isinstance(value, ndarray)}
    if len(shapes) != 1:
        raise ValueError(f"operands of the shapes {sorted(shapes)}; allowed: arrays of one shape, and numbers")
    found: list[Iterable[Any]] = []
    for value in values:
        convert = kind is float64 and _kind_with(value) is not float64
        if isinstance(value, ndarray):
            found.append(map(float, value.numbers) if convert else value.numbers)
        else:
            found.append(repeat(float(value) if convert else value))
    return found, shapes.pop()


def _common(*values: Any) -> NumberKind:
    return max(map(_kind_with, values), key=lambda kind: kind.rank)


def _divided(a: float, b: float) -> float:
    """IEEE 754: a number over nothing is infinite, nothing over nothing is none."""
    if b != 0:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(inf, a) * math.copysign(1.0, b)


def _quotients(a: Iterable[Any], b: Iterable[Any]) -> list[Any]:
    return list(map(_divided, a, b))


def _arithmetic(act: Callable[[Any, Any], Any], a: Any, b: Any, kind: NumberKind | None = None) -> ndarray:
    found = kind or _common(a, b)
    if found is bool_ and kind is None:
        raise NotImplementedError(f"{act.__name__} of truths; allowed: of numbers")
    both, shape = _together(found, a, b)
    try:
        return ndarray(list(map(act, *both)), found, shape)
    except ZeroDivisionError:
        if act is not operator.truediv:
            raise
        return ndarray(_quotients(*_together(found, a, b)[0]), found, shape)


def _truth(act: Callable[[Any, Any], Any], a: Any, b: Any) -> ndarray:
    both, shape = _together(bool_, a, b)
    return ndarray(list(map(act, *both)), bool_, shape)


def _logic(act: Callable[[Any, Any], Any], a: Any, b: Any) -> ndarray:
    if _common(a, b) is not bool_:
        raise NotImplementedError(f"{act.__name__} of numbers; allowed: of truths")
    return _truth(act, a, b)


def _operators() -> None:
    """Gives arrays Python's operators: on the left of another operand, and on its right."""
    two_sided: dict[str, Callable[[Any, Any], ndarray]] = {
        name: partial(_arithmetic, getattr(operator, name)) for name in ("add", "sub", "mul", "mod", "floordiv", "pow")
    }
    two_sided["truediv"] = partial(_arithmetic, operator.truediv, kind=float64)
    two_sided |= {
        "and": partial(_logic, operator.and_),
        "or": partial(_logic, operator.or_),
        "xor": partial(_logic, operator.xor),
    }
    for name, apply in two_sided.items():
        setattr(ndarray, f"__{name}__", partialmethod(_on_the_left, apply))
        setattr(ndarray, f"__r{name}__", partialmethod(_on_the_right, apply))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(ndarray, f"__{name}__", partialmethod(_on_the_left, partial(_truth, getattr(operator, name))))


def _on_the_left(self: ndarray, apply: Callable[[Any, Any], ndarray], other: Any) -> ndarray:
    return apply(self, other)


def _on_the_right(self: ndarray, apply: Callable[[Any, Any], ndarray], other: Any) -> ndarray:
    return apply(other, self)


_operators()


class _Extremum:
    """`maximum` or `minimum`: of two operands number by number; a NaN on either side stays."""

    def __init__(self, better: Callable[[Any, Any], bool]) -> None:
        self._better = better

    def __call__(self, a: Any, b: Any) -> Any:
        kind, better = _common(a, b), self._better
        (left, right), shape = _together(kind, a, b)
        return ndarray([x if better(x, y) or x != x else y for x, y in zip(left, right, strict=False)], kind, shape)

    def reduce(self, rows: Sequence[ndarray]) -> ndarray:
        """The extremum over arrays of one shape."""
        found, *others = rows
        for each in others:
            found = self(found, each)
        return found


maximum, minimum = _Extremum(operator.ge), _Extremum(operator.le)


def where(mask: ndarray, a: Any, b: Any) -> ndarray:
    """`a` where the mask holds, else `b`."""
    kind = _common(a, b)
    (truths, left, right), shape = _together(kind, ndarray(mask.numbers, kind, mask.shape), a, b)
    return ndarray([x if truth else y for truth, x, y in zip(truths, left, right, strict=False)], kind, shape)


def isfinite(a: ndarray) -> ndarray:
    """Whether numbers are neither infinite nor NaN."""
    return ndarray(list(map(math.isfinite, a.numbers)), bool_, a.shape)


def array_equal(a: ndarray, b: ndarray) -> bool:
    """Whether two arrays have one shape and equal numbers."""
    return a.shape == b.shape and all(map(operator.eq, a.numbers, b.numbers))


def _flat(found: Any) -> tuple[list[Any], tuple[int, ...]]:
    """The numbers of nested sequences, and their shape."""
    if isinstance(found, ndarray):
        return found.numbers, found.shape
    rows = list(found)
    if not any(isinstance(row, ndarray | list | tuple) for row in rows):
        return rows, (len(rows),)
    parts = list(map(_flat, rows))
    [shape] = {shape for _, shape in parts}
    return [*chain.from_iterable(numbers for numbers, _ in parts)], (len(rows), *shape)


def array(found: Any, dtype: Any = None) -> ndarray:
    """An array of numbers in sequences. Without `dtype` of the kind that holds all."""
    numbers, shape = _flat(found)
    kind = _kind_of(numbers) if dtype is None else _kind(dtype)
    return ndarray(list(map(kind.cast, numbers)), kind, shape)


def fromiter(numbers: Iterable[Any], dtype: Any, count: int = -1) -> ndarray:
    """An array of an iterator's numbers."""
    return array(list(numbers), dtype)


def arange(start: int, stop: int | None = None) -> ndarray:
    """Integers from `start`, or from 0, up to before `stop`."""
    return ndarray([*(range(start) if stop is None else range(start, stop))], int64)


def full(shape: int | tuple[int, ...], value: Any, dtype: Any = None) -> ndarray:
    """An array with one number everywhere."""
    sizes = (shape,) if isinstance(shape, int) else shape
    kind = _kind(type(value) if dtype is None else dtype)
    return ndarray([kind.cast(value)] * math.prod(sizes), kind, sizes)


def zeros(shape: int | tuple[int, ...], dtype: Any = float) -> ndarray:
    return full(shape, 0, dtype)


def ones(shape: int | tuple[int, ...], dtype: Any = float) -> ndarray:
    return full(shape, 1, dtype)


def full_like(a: ndarray, value: Any) -> ndarray:
    return full(a.shape, value, a.dtype)


def zeros_like(a: ndarray) -> ndarray:
    return full_like(a, 0)


def ones_like(a: ndarray) -> ndarray:
    return full_like(a, 1)


def concatenate(parts: Sequence[Any], axis: int = 0) -> ndarray:
    """Arrays one behind the other along their first dim, or tables [rows, columns] beside each other."""
    arrays = list(map(array, parts))
    kind = _common(*arrays)
    if axis == 1:
        rows = [
            [*chain.from_iterable(map(kind.cast, row.numbers) for row in alike)] for alike in zip(*arrays, strict=True)
        ]
        return ndarray([*chain.from_iterable(rows)], kind, (len(rows), sum(each.shape[1] for each in arrays)))
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    return ndarray([*chain.from_iterable(map(kind.cast, each.numbers) for each in arrays)], kind, shape)


def _rows(parts: Sequence[ndarray]) -> ndarray:
    """Arrays of one shape as the rows of a table."""
    return array(list(parts), _common(*parts))


globals()["stack"] = _rows  # a name that has another meaning in this project


def argsort(a: ndarray, kind: str = "stable") -> ndarray:
    """The places of numbers from the least to the most; equal ones stay in order."""
    if kind != "stable":
        raise NotImplementedError(f"kind={kind!r}; allowed: 'stable'")
    return ndarray(sorted(range(len(a)), key=a.numbers.__getitem__), int64)


def lexsort(keys: Sequence[ndarray]) -> ndarray:
    """The places of rows in order of the last key, of equal ones in order of the one before."""
    rows = list(zip(*(key.numbers for key in reversed(keys)), strict=True))
    return ndarray(sorted(range(len(rows)), key=rows.__getitem__), int64)


def unique(a: ndarray, return_index: bool = False, return_inverse: bool = False) -> Any:
    """The numbers that there are, from the least to the most; with the place where each comes first, or the place of each among
    them."""
    first: dict[Any, int] = {}
    for place, each in enumerate(a.numbers):
        first.setdefault(each, place)
    numbers = sorted(first)
    found: list[ndarray] = [ndarray(numbers, a.dtype)]
    if return_index:
        found.append(ndarray([first[each] for each in numbers], int64))
    if return_inverse:
        places = {each: place for place, each in enumerate(numbers)}
        found.append(ndarray(list(map(places.__getitem__, a.numbers)), int64))
    return found[0] if len(found) == 1 else tuple(found)


def argmax(a: ndarray) -> int:
    return a.argmax()


def flatnonzero(a: ndarray) -> ndarray:
    """The places of numbers that are not 0."""
    return ndarray([*compress(range(len(a.numbers)), a.numbers)], int64)


def cumsum(a: Any) -> ndarray:
    """The sums of the numbers up to each."""
    found = array(a)
    kind = int64 if found.dtype is bool_ else found.dtype
    return ndarray(list(accumulate(found.numbers)), kind)


def diff(a: Any) -> ndarray:
    """Differences of each number from the one before it."""
    found = array(a)
    return found[1:] - found[:-1]


def interp(x: ndarray, xp: Sequence[float], fp: Sequence[float], right: float | None = None) -> ndarray:
    """The line through points (xp, fp), which rise, at `x`; beyond the last point `right`."""
    last = len(xp) - 1
    slopes = [_divided(fp[each + 1] - fp[each], xp[each + 1] - xp[each]) for each in range(last)]

    def at(place: float) -> float:
        if place > xp[last]:
            return fp[last] if right is None else right
        low = bisect_right(xp, place) - 1
        if low < 0:
            return fp[0]
        if low == last or xp[low] == place:
            return fp[low]
        return slopes[low] * (place - xp[low]) + fp[low]

    return ndarray([float(at(each)) for each in x.numbers], float64, x.shape)
