"""A checkpoint's parameters as full tensors, put together from all parts and shards, one at a time."""

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from fourfold.checkpoint.boxes import Box, box_shape
from fourfold.checkpoint.folders import checkpoints
from fourfold.checkpoint.load import open_files
from fourfold.checkpoint.manifest import PartRecord, how_to_go_on, read_manifest
from fourfold.checkpoint.tensor_file import DamagedCheckpoint
from fourfold.checkpoint.unit_shard import MASTER, extra_name, tensor_name
from fourfold.config import RunFailure


class ParameterReader:
    """The master copy of every parameter of a checkpoint, whatever the layout that saved it.

    `shapes`: by name. `extras`: shapes of the tensors beside the units, by name. `info`: what the run saved beside its state.
    """

    def __init__(self, path: Path) -> None:
        """Verifies every file. Raises `RunFailure`."""
        self.path = path
        manifest = read_manifest(path)
        for unit, record in manifest.units.items():
            if MASTER not in record.dtypes:
                raise RunFailure(f"{path}: unit {unit} has no {MASTER} tensor; {how_to_go_on(path)}")
        self._manifest = manifest
        self._files = open_files(path, manifest, manifest.files.keys())
        self._places: dict[str, tuple[str, dict[Box, tuple[PartRecord, int]]]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for unit, record in manifest.units.items():
            for index, parameter in enumerate(record.parameters):
                boxes = {
                    part.parameters[index].box: (part, part.parameters[index].start) for part in record.parts.values()
                }
                self._places[parameter.name] = (unit, boxes)
                self.shapes[parameter.name] = parameter.shape
        self.extras = {name: record.shape for name, record in manifest.extras.items()}
        self.step = manifest.step
        self.info = manifest.info

    def names(self) -> list[str]:
        """Every parameter's name."""
        return list(self.shapes)

    def get(self, name: str) -> Tensor:
        """The full parameter in the master format, in memory of its own. Raises `KeyError` for a name it has not."""
        return self.rows(name, 0, self.shapes[name][0])

    def rows(self, name: str, start: int, end: int) -> Tensor:
        """Rows [start, end) along dim 0 of the parameter, in memory of their own; no other is read."""
        unit, boxes = self._places[name]
        result: Tensor | None = None
        for box, (part, offset) in boxes.items():
            (first, last), *rest = box
            low, high = max(first, start), min(last, end)
            if low >= high:
                continue
            inner = box_shape(box)[1:]
            row = prod(inner)
            piece = self._flat(unit, part, offset + (low - first) * row, offset + (high - first) * row)
            if result is None:
                result = torch.empty((end - start, *self.shapes[name][1:]), dtype=piece.dtype)
            places = (slice(low - start, high - start), *(slice(*interval) for interval in rest))
            result[places] = piece.view(high - low, *inner)
        if result is None:
            raise ValueError(f"{name} has {self.shapes[name][0]} rows; there are no rows [{start}, {end})")
        return result

    def _flat(self, unit: str, part: PartRecord, start: int, end: int) -> Tensor:
        """Elements [start, end) of a part's flat buffer."""
        size = part.shard_numel
        pieces = []
        for index in range(start // size, -(-end // size)):
            first, last = max(start, index * size), min(end, (index + 1) * size)
            file = self._files[part.shards[index]]
            pieces.append(file.read_range(tensor_name(unit, MASTER), first - index * size, last - index * size))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def extra(self, name: str) -> Tensor:
        """A tensor beside the units. Raises `KeyError` for a name it has not."""
        return self._files[self._manifest.extras[name].file].read(extra_name(name))

    def pieces(self, max_bytes: int = 1 << 30) -> Iterator[tuple[str, Tensor]]:
        """(name, rows of it, in order) of every parameter, at most `max_bytes` at a time or one row: experts one after another."""
        for name, shape in self.shapes.items():
            row_bytes = prod(shape[1:]) * 8
            step = max(1, max_bytes // row_bytes)
            for start in range(0, shape[0], step):
                yield name, self.rows(name, start, min(start + step, shape[0]))

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """(name, full tensor) of every parameter; one is in memory at a time."""
        for name in self.shapes:
            yield name, self.get(name)


def read_parameters(path: Path) -> ParameterReader:
    """Opens a checkpoint, `root/step-NNNNNN`, to read its parameters. Raises `RunFailure` when it is damaged."""
    return ParameterReader(path)


def newest_readable(root: Path, report: Callable[[str], None]) -> ParameterReader | None:
    """The newest checkpoint below `root` that can be read, or None; `report` is told of each newer one, and why not."""
    for path in reversed(checkpoints(root)):
        try:
            return ParameterReader(path)
        except DamagedCheckpoint as error:
            report(f"{path.name} is not used: {error.problem}")
    return None
