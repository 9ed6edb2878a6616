"""A checkpoint's parameters as whole tensors, put together from all ranks' shards, one at a time."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fourfold.checkpoint.load import open_files
from fourfold.checkpoint.manifest import UnitRecord, how_to_go_on, read_manifest
from fourfold.checkpoint.unit_shard import MASTER, tensor_name
from fourfold.config import RunFailure


class ParameterReader:
    """The master copy of every parameter of a checkpoint, whatever the layout that saved it.

    `shapes`: by Hugging Face name, in the order of the model. `info`: what the run saved beside its state.
    """

    def __init__(self, path: Path) -> None:
        """Verifies every file. Raises `RunFailure`."""
        self.path = path
        manifest = read_manifest(path)
        for unit, record in manifest.units.items():
            if MASTER not in record.dtypes:
                raise RunFailure(f"{path}: unit {unit} has no {MASTER} tensor; {how_to_go_on(path)}")
        self._files = open_files(path, manifest, manifest.files.keys())
        self._places: dict[str, tuple[str, UnitRecord, int, int]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for unit, record in manifest.units.items():
            for parameter in record.parameters:
                self._places[parameter.name] = (unit, record, parameter.start, parameter.end)
                self.shapes[parameter.name] = parameter.shape
        self.step = manifest.step
        self.info = manifest.info

    def names(self) -> list[str]:
        """Every parameter's name."""
        return list(self.shapes)

    def get(self, name: str) -> Tensor:
        """The whole parameter in the master format, in memory of its own. Raises `KeyError` for a name it has not."""
        unit, record, start, end = self._places[name]
        result: Tensor | None = None
        size = record.shard_numel
        for index in range(start // size, -(-end // size)):
            first, last = max(start, index * size), min(end, (index + 1) * size)
            part = self._files[record.shards[index]].read_range(
                tensor_name(unit, MASTER), first - index * size, last - index * size
            )
            if result is None:
                result = torch.empty(end - start, dtype=part.dtype)
            result[first - start : last - start] = part
        assert result is not None  # a parameter has at least one element
        return result.view(self.shapes[name])

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) of every parameter; one is in memory at a time."""
        for name in self.shapes:
            yield name, self.get(name)


def read_parameters(path: Path) -> ParameterReader:
    """Opens a checkpoint, `root/step-NNNNNN`, to read its parameters. Raises `RunFailure` when it is damaged."""
    return ParameterReader(path)
