"""A checkpoint's parameters as full tensors, put together from all parts and shards, one at a time."""

from collections.abc import Callable, Iterable, Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from fourfold.checkpoint.formats import HALVES, NUMBERS, converts
from fourfold.checkpoint.manifest import how_to_go_on, read_manifest
from fourfold.checkpoint.saved_state import SavedState
from fourfold.checkpoint.tensor_file import DamagedCheckpoint
from fourfold.checkpoint.unit_shard import MASTER, extra_name
from fourfold.config import RunFailure
from fourfold.model.halves import join_halves
from fourfold.model.torch_operations import torch_dtype


class ParameterReader:
    """The master copy of every parameter of a checkpoint, whatever the layout that saved it.

    `shapes`: by name. `extras`: shapes of the tensors beside the units, by name. `info`: what the run saved beside its state.
    """

    def __init__(self, path: Path) -> None:
        """Verifies every file. Raises `RunFailure`."""
        self.path = path
        manifest = read_manifest(path)
        for unit, record in manifest.units.items():
            if not converts(record.dtypes, MASTER, record.dtypes.get(MASTER, NUMBERS)):
                raise RunFailure(f"{path}: unit {unit} has no {MASTER} tensor; {how_to_go_on(path)}")
        self._saved = SavedState(path, manifest)
        self._saved.verify_all()
        self._dtypes: dict[str, torch.dtype] = {}
        self._in_halves = set[str]()
        self.shapes: dict[str, tuple[int, ...]] = {}
        for record in manifest.units.values():
            for parameter in record.parameters:
                self._dtypes[parameter.name] = torch_dtype(record.dtypes.get(MASTER, NUMBERS))
                self.shapes[parameter.name] = parameter.shape
                if MASTER not in record.dtypes:
                    self._in_halves.add(parameter.name)
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
        shape = self.shapes[name]
        if not 0 <= start < end <= shape[0]:
            raise ValueError(f"{name} has {shape[0]} rows; there are no rows [{start}, {end})")
        box = ((start, end), *((0, size) for size in shape[1:]))

        def read(role: str, dtype: torch.dtype) -> Tensor:
            result = torch.empty(prod(high - low for low, high in box), dtype=dtype)
            self._saved.fill(self._saved.reads(name, role, box, 0, result))
            return result

        if name in self._in_halves:
            found = join_halves(*(read(role, torch_dtype(dtype)) for role, dtype in HALVES.items()))
        else:
            found = read(MASTER, self._dtypes[name])
        return found.view(end - start, *shape[1:])

    def extra(self, name: str) -> Tensor:
        """A tensor beside the units. Raises `KeyError` for a name it has not."""
        return self._saved.file(self._saved.manifest.extras[name].file).read_checked(extra_name(name))

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


def newest_readable(paths: Iterable[Path], report: Callable[[str], None]) -> ParameterReader | None:
    """The first checkpoint of `paths` that can be read, or None; `report` is told of each before it, and why not."""
    for path in paths:
        try:
            return ParameterReader(path)
        except DamagedCheckpoint as error:
            report(f"{path.name} is not used: {error.problem}")
    return None
