"""Weights as views of flat buffers: what a segment's function reads, and where its gradients are added."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from fourfold.model.low_precision import Gemms
from fourfold.model.operations import Array


class Deferred:
    """Deferred weight gradients (the W of zero-bubble schedules, Qi et al. 2023), in the order in which they were met.

    Each is held as a function that adds it, with the operands that it needs; `run` drops those one by one.
    """

    def __init__(self) -> None:
        self._additions: deque[tuple[Callable[[], None], Callable[[], None] | None]] = deque()

    def append(self, addition: Callable[[], None], begin: Callable[[], None] | None = None) -> None:
        """`begin` starts the collective that the addition waits for; it is called while the addition before it is yet to run."""
        self._additions.append((addition, begin))

    def __len__(self) -> int:
        return len(self._additions)

    def run(self) -> None:
        """Adds all that was deferred, once."""
        self._begin(0)
        while self._additions:
            self._begin(1)
            self._additions.popleft()[0]()

    def _begin(self, index: int) -> None:
        if index < len(self._additions):
            begin = self._additions[index][1]
            if begin is not None:
                begin()


class Weight:
    """A view of a unit's flat parameters and the matching view of its flat gradients.

    The views stay valid while the storage below them is freed and refilled. A gradient is added to what is there, except
    the first into a new buffer, whose content means nothing (`fresh`): that one is assigned, so nobody clears the buffer.
    While `deferred` is set, matmuls are deferred; what they read must then stay as it is until they run.
    """

    __slots__ = ("data", "deferred", "fresh", "grad")

    def __init__(self, data: Array, grad: Array) -> None:
        self.data = data
        self.grad = grad
        self.fresh = False
        self.deferred: Deferred | None = None

    def add_matmul(self, gemms: Gemms, grad_output: Array, inputs: Array) -> None:
        """grad += grad_output^T @ inputs, now or deferred. Shapes: [tokens, out], [tokens, in] -> [out, in]."""
        self.add_later(lambda: self.add_matmul_now(gemms, grad_output, inputs))

    def add_later(self, addition: Callable[[], None]) -> None:
        """Runs a function that adds to this gradient, now or deferred; what it reads must stay as it is until then."""
        if self.deferred is None:
            addition()
        else:
            self.deferred.append(addition)

    def add_matmul_now(self, gemms: Gemms, grad_output: Array, inputs: Array) -> None:
        """grad += grad_output^T @ inputs even while others are deferred: from within a deferred addition, or where it cannot
        wait."""
        gemms.accumulate(self.grad, grad_output, inputs, self.fresh)
        self.fresh = False

    def add(self, grad: Array) -> None:
        """Adds a gradient at once: sums for norms and biases are cheap."""
        if self.fresh:
            self.grad.copy_(grad)
            self.fresh = False
        else:
            self.grad.add_(grad)

    def clear_if_fresh(self) -> None:
        """Zeros where nothing was added yet: before adding to some rows alone, or where no gradient came."""
        if self.fresh:
            self.grad.zero_()
            self.fresh = False


class Shaped(Protocol):
    """A parameter, or one rank's part of it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def numel(self) -> int: ...


class WeightUnit:
    """Named weights that are brought together, deferred and reduced as one."""

    def __init__(self) -> None:
        self._weights: dict[tuple[str, str | None], Weight] = {}

    def weight(self, first: str, last: str | None = None) -> Weight:
        """The parameter `first`, or the consecutive run `first`..`last` stacked along dim 0 (q, k, v as one matrix). The same
        object every time, so that segments which share a parameter add to it as one."""
        weight = self._weights.get((first, last))
        if weight is None:
            weight = self._weights[first, last] = self.make(first, last)
        return weight

    @property
    def made(self) -> Mapping[tuple[str, str | None], Weight]:
        """The weights that were asked for, by first and last parameter."""
        return self._weights

    def make(self, first: str, last: str | None) -> Weight:
        """A weight that nobody has asked for yet."""
        raise NotImplementedError

    def set_deferred(self, deferred: Deferred | None) -> None:
        for weight in self._weights.values():
            weight.deferred = deferred


class FlatUnit(WeightUnit):
    """One unit's flat parameters and gradients with a named view for each run of consecutive parameters."""

    def __init__(self, contents: Sequence[Shaped], parameters: Array, gradients: Array) -> None:
        super().__init__()
        self.parameters = parameters
        self.gradients = gradients
        self.numel = sum(spec.numel for spec in contents)
        self._ranges: dict[str, tuple[int, int, Shaped]] = {}
        offset = 0
        for spec in contents:
            self._ranges[spec.name] = (offset, offset + spec.numel, spec)
            offset += spec.numel

    def make(self, first: str, last: str | None) -> Weight:
        start, end, spec = self._ranges[first]
        if last is not None:
            end = self._ranges[last][1]
        shape = (-1, *spec.shape[1:])
        return Weight(self.parameters[start:end].view(shape), self.gradients[start:end].view(shape))

    def begin_gradients(self) -> None:
        """The gradient buffer is new: its padding is cleared, the rest is assigned by the first gradients."""
        if self.numel < len(self.gradients):
            self.gradients[self.numel :].zero_()
        for weight in self._weights.values():
            weight.fresh = True

    def settle_gradients(self) -> None:
        """Clears what got no gradient."""
        for weight in self._weights.values():
            weight.clear_if_fresh()


@contextmanager
def deferring(units: Iterable[WeightUnit]) -> Iterator[Deferred]:
    """Within the block, the units' weight gradients that are matmuls are deferred into the object that it yields."""
    units, deferred = list(units), Deferred()
    for unit in units:
        unit.set_deferred(deferred)
    try:
        yield deferred
    finally:
        for unit in units:
            unit.set_deferred(None)
