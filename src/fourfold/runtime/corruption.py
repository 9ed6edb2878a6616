"""Silent corruption: checksums of bits, compared between ranks that hold the same, or between two runs of one computation."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fourfold.config import RunFailure
from fourfold.layout import FlatLayout
from fourfold.layout.mesh import axes_name
from fourfold.program import Instruction
from fourfold.program.replicas import Replica, replicas
from fourfold.program.view import RankView
from fourfold.runtime.collectives import AxisGroup
from fourfold.runtime.units import Unit

_ROW = 1024
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Corruption(RunFailure):
    """Bits that should be equal are not. `ranks`: those of which one or all are at fault; `what`: the first bad tensor."""

    def __init__(self, ranks: tuple[int, ...], what: str, how: str) -> None:
        super().__init__(f"silent corruption: {how}")
        self.ranks, self.what, self.how = ranks, what, how


def checksum(tensor: Tensor) -> Tensor:
    """Sum of the bits as 64-bit words, modulo 2**64, each row of 1,024 words times an odd number of its own: an int64 scalar. Every
    flipped bit shows. Takes one pass, allocates little, and the order of the sum does not matter."""
    flat = tensor.reshape(-1)
    size = flat.element_size()
    begin = min(-flat.storage_offset() % (8 // size), flat.numel())  # whole words begin there
    end = begin + (flat.numel() - begin) // (8 // size) * (8 // size)
    ragged = torch.cat((flat[:begin], flat[end:])).view(_WORDS[size]).to(torch.int64).sum()
    words = flat[begin:end].view(torch.int64)
    rows = words[: words.numel() // _ROW * _ROW].view(-1, _ROW).sum(1)
    weights = torch.arange(1, 2 * rows.numel() + 1, 2, device=rows.device)
    return (rows * weights).sum() - 3 * words[rows.numel() * _ROW :].sum() + 5 * ragged


def by_parameter(flat: FlatLayout, tensor: Tensor, start: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Every parameter's part of a flat buffer, which begins at element `start` of the unit."""
    for parameter, first, last in flat.ranges():
        part = tensor[max(0, first - start) : max(0, last - start)]
        if part.numel():
            yield parameter.name, part


class Replayed(NamedTuple):
    """A tensor that a REPLAY made a second time; `differs`: whether its bits do, a bool on the device."""

    what: str
    step: Instruction
    differs: Tensor


def check_replays(replays: Sequence[Replayed], rank: int) -> None:
    """Raises `Corruption` for the first that differs. Ranks with which the segment computes together see it too."""
    flags = torch.stack([replay.differs for replay in replays]).tolist() if replays else []
    for replay in (replay for replay, differs in zip(replays, flags, strict=True) if differs):
        axes = sorted({collective.axes for collective in replay.step.collectives})
        beside = f", or another rank of its groups along {', '.join(axes)}," if axes else ""
        how = (
            f"rank {rank}{beside} made {replay.what} twice from the same inputs, in other bits (`{replay.step.short}`)"
        )
        raise Corruption((rank,), replay.what, how)


class ReplicaChecks:
    """Compares what this rank holds with what others hold alike."""

    def __init__(self, view: RankView, units: Mapping[str, Unit], groups: Mapping[str, AxisGroup], rank: int) -> None:
        self._units, self._rank = units, rank
        device = next(iter(units.values())).master.device
        self._nothing = torch.zeros((), dtype=torch.int64, device=device)  # of a shard without copied values
        self._parts: dict[str, list[Replica]] = {}
        for replica in replicas(view):
            self._parts.setdefault(axes_name(replica.axes), []).append(replica)
        self._groups = {axes: groups[axes] for axes in self._parts}

    def compare(self) -> None:
        """One checksum a group. Raises `Corruption`: on the rank at fault, or, where two disagree, on both."""
        found = {axes: self._gathered(group, [self._checksum(axes)]) for axes, group in self._groups.items()}
        values = torch.cat([each.view(-1) for each in found.values()]).tolist() if found else []
        for axes, group in self._groups.items():
            checksums, values = values[: group.size], values[group.size :]
            if len(set(checksums)) > 1:
                self._blame(axes, checksums)

    def _gathered(self, group: AxisGroup, own: list[Tensor]) -> Tensor:
        """Every rank's values, [ranks, values]."""
        values = torch.stack(own)
        full = values.new_empty(group.size * len(own))
        group.all_gather(full, values).wait()
        return full.view(group.size, -1)

    def _checksum(self, axes: str) -> Tensor:
        sums = [checksum(tensor) for replica in self._parts[axes] for _, tensor, _ in self._tensors(replica)]
        return checksum(torch.stack([self._nothing, *sums]))

    def _tensors(self, replica: Replica) -> Iterator[tuple[str, Tensor, int]]:
        """(role, tensor, where it begins in the unit) of the buffer, or of its ranges."""
        kind, _, name = replica.buffer.partition("/")
        unit = self._units[name]
        if kind == "optimizer":
            for role, state in unit.optimizer.state.items():
                yield f"{role} of ", state, unit.flat.shard_range(unit.index)[1] - state.numel()
            return
        tensor = getattr(unit, kind)
        begin = 0 if kind == "params" else unit.flat.shard_range(unit.index)[0]
        role = "master weights of " if kind == "master" else ""
        for start, end in replica.ranges or ((begin, begin + tensor.numel()),):
            first, last = max(start, begin), min(end, begin + tensor.numel())
            if first < last:
                yield role, tensor[first - begin : last - begin], first

    def _blame(self, axes: str, checksums: list[int]) -> None:
        """All ranks of the group come here, and compare tensor by tensor."""
        named = [
            (f"{role}{name}", checksum(part))
            for replica in self._parts[axes]
            for role, tensor, start in self._tensors(replica)
            for name, part in by_parameter(replica.flat, tensor, start)
        ]
        group = self._groups[axes]
        each = self._gathered(group, [value for _, value in named])
        usual, times = Counter(checksums).most_common(1)[0]
        decided = 2 * times > len(checksums)
        bad = tuple(r for r, value in zip(group.ranks, checksums, strict=True) if value != usual or not decided)
        differs = (each != each[checksums.index(usual)]).any(0).tolist()
        what = next((name for (name, _), there in zip(named, differs, strict=True) if there), "padding")
        if self._rank not in bad:  # the rank at fault ends, and with it this wait
            self._gathered(group, [checksum(each)])
        others = _spoken([rank for rank in group.ranks if rank not in bad])
        how = f"{_spoken(bad)} holds other bits of {what} than {others}"
        if not decided:
            how = f"{_spoken(bad)} hold different bits of {what}; which of them are right is not known"
        raise Corruption(bad, what, f"{how} ({axes})")


def _spoken(ranks: list[int] | tuple[int, ...], shown: int = 8) -> str:
    more = f" and {len(ranks) - shown} more" if len(ranks) > shown else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:shown]))}{more}"
