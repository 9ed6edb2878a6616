"""The first tensor of a step that holds an infinity or a NaN, on this rank."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fourfold.layout import FlatLayout
from fourfold.model.halves import WEIGHTS
from fourfold.model.spec import Segment
from fourfold.program import Instruction
from fourfold.runtime.corruption import by_parameter
from fourfold.runtime.units import MASTER, Unit, is_live

if TYPE_CHECKING:
    from fourfold.runtime.executor import Executor


@dataclass(frozen=True)
class BadTensor:
    """`order` puts those of all ranks in the order in which one follows from another: weights and optimizer states, then by
    microbatch forward through the segments and back."""

    order: int
    what: str


class FirstBadTensor:
    """The executor's observer that finds it; `found` is None until then. It waits for the device after every instruction."""

    def __init__(self, executor: "Executor") -> None:
        self._executor = executor
        self._segments = [segment.name for segment in executor.view.spec.segments]
        self.found = bad_state(executor.units.values())

    def __call__(self, index: int, step: Instruction) -> None:
        """After an instruction: looks at what it wrote."""
        if self.found is not None or not step.op.is_compute:
            return
        for name in step.writes:
            tensor = self._executor.buffer(name)
            first = _first_bad(tensor) if isinstance(tensor, Tensor) else None
            if first is not None:
                self.found = BadTensor(self._order(step), f"{self._name(name, first)}, written by `{step.short}`")
                return

    def _order(self, step: Instruction) -> int:
        count, place = len(self._segments), self._segments.index(step.segment or "")
        if step.op.is_backward:
            place = 2 * count - place
        return 1 + (step.microbatch or 0) * (2 * count + 1) + place

    def _name(self, buffer: str, index: int) -> str:
        kind, _, rest = buffer.partition("/")
        if kind == "grad":
            return f"the gradient of {_parameter(self._executor.units[rest].flat, index)}"
        segment = rest.partition("/")[0]
        return f"the {'gradient of the ' if kind == 'dhidden' else ''}input of {segment}"


class OwnGradients:
    """Norms of this rank's gradients before they are summed with others', parameter by parameter, of one step."""

    def __init__(self, segments: Sequence[Segment], units: Mapping[str, Unit]) -> None:
        self._units = units
        self._places = {unit.name: place for place, segment in enumerate(segments) for unit in segment.own}
        self.taken: list[tuple[str, int, tuple[str, ...], tuple[Tensor, ...]]] = []
        """Unit, microbatch, parameters and the norms of their gradients, of each that was taken in this step."""

    def clear(self) -> None:
        """Before a step."""
        self.taken = []

    def take(self, unit: str, microbatch: int) -> None:
        """Before the reduction of the unit's gradient."""
        names, parts = zip(*by_parameter(self._units[unit].flat, self._units[unit].grad), strict=True)
        self.taken.append((unit, microbatch, names, torch._foreach_norm(parts)))

    def take_others(self) -> None:
        """Before the update: of units that nobody reduces."""
        for name in self._units.keys() - {unit for unit, *_ in self.taken}:
            self.take(name, 0)

    def first_bad(self) -> BadTensor | None:
        """The first that is not finite, in the order of backward. Waits for the device."""
        found = []
        for unit, microbatch, names, norms in self.taken:
            bad = torch.stack(norms).isfinite().logical_not().tolist()
            order = (microbatch + 1) * len(self._places) - self._places[unit]
            found += [BadTensor(order, f"the gradient of {names[bad.index(True)]}")] if any(bad) else []
        return min(found, key=lambda each: each.order, default=None)


def bad_state(units: Iterable[Unit]) -> BadTensor | None:
    """The first of this rank's weights and optimizer states that is not finite. Takes one pass over them."""
    for unit in units:
        _, end = unit.flat.shard_range(unit.index)
        for role, tensor in unit.states.items():
            index = _first_bad(tensor)
            if index is not None:
                name = _parameter(unit.flat, end - tensor.numel() + index)
                return BadTensor(0, name if role in (MASTER, WEIGHTS) else f"{role} of {name}")
    return None


def _parameter(flat: FlatLayout, index: int) -> str:
    """The parameter that an element of the flat buffer belongs to."""
    return next((p.name for p, start, end in flat.ranges() if start <= index < end), f"the padding of {flat.unit}")


def _first_bad(tensor: Tensor) -> int | None:
    """The index of the first element that is not finite, of a tensor laid flat."""
    if not is_live(tensor) or torch.isfinite(
        tensor.sum()
    ):  # a finite sum has finite terms, and is faster than looking at each
        return None
    bad = ~torch.isfinite(tensor.reshape(-1))
    return int(bad.to(torch.uint8).argmax()) if bad.any() else None
