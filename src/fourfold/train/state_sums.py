"""Sums of the state that no other rank holds: between two updates nothing may change it, and a save's copy is it, bit for bit."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from fourfold.config import RunConfig, RunFailure
from fourfold.program import Instruction
from fourfold.program.instruction import Op
from fourfold.runtime.corruption import Corruption, by_parameter, checksum
from fourfold.runtime.step import Observer
from fourfold.runtime.units import Unit


class StateSums:
    """One rank's weights and optimizer states, tensor by tensor: their sums after an update are those before the next one, in steps
    that `faults.checksum_every_steps` checks, and those before a save."""

    def __init__(self, config: RunConfig, steps: int, units: Mapping[str, Unit], rank: int) -> None:
        """`steps`: of the full run."""
        self._units, self._rank, self._steps = units, rank, steps
        self._every, self._saves = config.faults.checksum_every_steps, config.checkpoint.every_steps
        self._sums: Tensor | None = None

    def take(self, step: int) -> None:
        """Before step `step`, right after an update: takes the sums where somebody is to look at them."""
        is_saved = step == self._steps or (self._saves is not None and step % self._saves == 0)
        self._sums = self._now() if self._every and (is_saved or self._is_due(step)) else None

    def _is_due(self, step: int) -> bool:
        return self._every > 0 and (step + 1) % self._every == 0

    def before_update(self, step: int) -> Observer | None:
        """Looks between the last gradient and the first update of a step; None where nothing is due in it."""
        if self._sums is None or not self._is_due(step):
            return None

        def look(counter: int, instruction: Instruction) -> None:
            if instruction.op is Op.CLIP_NORM:
                self.verify()

        return look

    def verify(self) -> None:
        """Raises `Corruption` naming the first tensor that changed since the last update, where its sum was taken then."""
        if self._sums is None:
            return
        differs = (self._now() != self._sums).tolist()
        what = next((name for (name, _), there in zip(self._parts(), differs, strict=True) if there), None)
        if what is not None:
            how = f"rank {self._rank} holds other bits of {what} than its last update left"
            raise Corruption((self._rank,), what, how)

    def _now(self) -> Tensor:
        """On the device, of states in the host's memory too."""
        device = next(iter(self._units.values())).shard.device
        return torch.stack([checksum(part).to(device) for _, part in self._parts()])

    def _parts(self) -> Iterator[tuple[str, Tensor]]:
        """(role and parameter, values) of all that lasts from step to step on this rank alone."""
        for unit in self._units.values():
            end = unit.flat.shard_range(unit.index)[1]
            alone = unit.shard is unit.master or unit.in_halves
            held = unit.states if alone else {**unit.states, "shard": unit.shard}
            for role, tensor in held.items():
                spoken = "" if tensor is unit.shard else "master weights of " if role == "master" else f"{role} of "
                for name, part in by_parameter(unit.flat, tensor, end - tensor.numel()):
                    yield f"{spoken}{name}", part


def copy_check(source: Mapping[str, Tensor], copy: Mapping[str, Tensor]) -> Callable[[], None]:
    """Takes the sums of what is saved. The check, for when its bytes were written, raises `RunFailure` where `copy` is not it."""
    sums = {name: _aligned_sum(tensor) for name, tensor in source.items()}

    def check() -> None:
        changed = [name for name, tensor in copy.items() if int(_aligned_sum(tensor)) != int(sums[name])]
        if changed:
            raise RunFailure(
                f"silent corruption: the copy of {changed[0]} in host memory is not the state that was copied"
            )

    return check


def _aligned_sum(tensor: Tensor) -> Tensor:
    """A sum that does not depend on where the values lie in their storage."""
    is_aligned = tensor.storage_offset() * tensor.element_size() % 8 == 0
    return checksum(tensor if is_aligned else tensor.clone())
