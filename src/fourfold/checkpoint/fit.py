"""Whether a checkpoint is of this model and precision, whatever its layout; where it is not, which key to set back."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from torch import Tensor

from fourfold.checkpoint.manifest import Manifest, UnitRecord
from fourfold.checkpoint.tensor_file import dtype_name
from fourfold.checkpoint.unit_shard import UnitShard
from fourfold.config import FinalFailure


def check_fits(
    path: Path,
    manifest: Manifest,
    shards: Mapping[str, UnitShard],
    units: AbstractSet[str],
) -> None:
    """Raises `FinalFailure` where the checkpoint is not of this model or precision."""
    if lost := sorted(set(manifest.units) ^ units):
        where = "the checkpoint" if lost[0] in units else "this model"
        raise _other_model(path, f"{where} has no unit {lost[0]!r}")
    for unit, shard in shards.items():
        record = manifest.units[unit]
        _check_parameters(path, unit, record, shard)
        if lacking := [role for role, count in record.without.items() if count > shard.without.get(role, 0)]:
            raise _other_model(path, f"unit {unit} has no {lacking[0]} of its matrices there")
        for role, tensor in shard.tensors.items():
            dtype = dtype_name(tensor.dtype)
            if record.dtypes.get(role) != dtype:
                raise FinalFailure(
                    f"{path}: {role} of unit {unit} was saved as {record.dtypes.get(role)}, this run holds {dtype}; "
                    f"resume with the same precision.master"
                )


def check_extras(path: Path, manifest: Manifest, extras: Mapping[str, Tensor]) -> None:
    """Raises `FinalFailure` where an extra tensor that is asked for was not saved, or saved otherwise."""
    for name, tensor in extras.items():
        record = manifest.extras.get(name)
        if record is None:
            raise _other_model(path, f"the checkpoint has no extra tensor {name!r}")
        found, wanted = (record.shape, record.dtype), (tuple(tensor.shape), dtype_name(tensor.dtype))
        if found != wanted:
            raise _other_model(path, f"the extra tensor {name!r} is {found} there and {wanted} in this one")


def _check_parameters(path: Path, unit: str, record: UnitRecord, shard: UnitShard) -> None:
    saved = [(p.name, p.shape) for p in record.parameters]
    wanted = [(p.name, p.spec.shape) for p in shard.flat.parameters]
    if saved != wanted:
        ours, theirs = next((w, s) for w, s in zip([*wanted, None], [*saved, None], strict=False) if w != s)
        raise _other_model(path, f"in unit {unit} it has {_show(theirs)} where this model has {_show(ours)}")


def _other_model(path: Path, what: str) -> FinalFailure:
    return FinalFailure(
        f"{path} was saved by another model: {what}; resume with the run file that saved it, or state another "
        f"checkpoint.directory"
    )


def _show(parameter: tuple[str, tuple[int, ...]] | None) -> str:
    return f"{parameter[0]} {list(parameter[1])}" if parameter else "nothing"
