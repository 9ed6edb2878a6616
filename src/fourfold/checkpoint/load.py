"""Loading: everything is checked, names, shapes, layout and checksums, before the first element is copied."""

import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from fourfold.checkpoint.manifest import Manifest, UnitRecord, how_to_go_on, read_manifest
from fourfold.checkpoint.tensor_file import TensorFile, dtype_name
from fourfold.checkpoint.unit_shard import UnitShard, tensor_name
from fourfold.config import RunFailure


def load_checkpoint(path: Path, shards: Mapping[str, UnitShard]) -> dict[str, Any]:
    """Fills the tensors of `shards` in place and returns the `info` that was saved.

    `shards`: this rank's shard of every unit of the model; replicas load the same shard. The roles asked for may be fewer
    than those saved. Raises `RunFailure`, with the tensors untouched, when the checkpoint is incomplete or damaged, or was saved
    by another model or layout.
    """
    manifest = read_manifest(path)
    _check_model(path, manifest, shards)
    needed = {manifest.units[unit].shards[shard.index] for unit, shard in shards.items()}
    files = open_files(path, manifest, needed)
    for unit, shard in shards.items():
        for role, tensor in shard.tensors.items():
            file = files[manifest.units[unit].shards[shard.index]]
            tensor.copy_(file.read(tensor_name(unit, role)))
    return manifest.info


def open_files(path: Path, manifest: Manifest, needed: AbstractSet[str]) -> dict[str, TensorFile]:
    """Checks the lengths of all files, checksums and tensors of the needed ones, and opens these.

    Raises `RunFailure` naming the file and what to do.
    """
    advice = how_to_go_on(path)
    for name, record in manifest.files.items():
        try:
            size_bytes = (path / name).stat().st_size
        except OSError as error:
            raise RunFailure(f"{path / name} is missing or unreadable ({error.strerror}); {advice}") from None
        if size_bytes != record.size_bytes:
            raise RunFailure(f"{path / name} has {size_bytes} bytes, not the {record.size_bytes} saved; {advice}")
    files = {}
    for name in sorted(needed):
        try:
            with open(path / name, "rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise RunFailure(f"{path / name} is unreadable ({error.strerror}); {advice}") from None
        if found != manifest.files[name].sha256:
            raise RunFailure(f"{path / name} is corrupt: its SHA-256 is not the one saved; {advice}")
        files[name] = TensorFile(path / name, advice)
    for unit, described in manifest.units.items():
        for name in needed & set(described.shards):
            _check_tensors(files[name], unit, described, advice)
    return files


def _check_tensors(file: TensorFile, unit: str, record: UnitRecord, advice: str) -> None:
    for role, dtype in record.dtypes.items():
        name = tensor_name(unit, role)
        if name not in file.names:
            raise RunFailure(f"{file.path} lacks the tensor {name}; {advice}")
        found = (file.shape(name), file.dtype(name))
        expected = ((record.shard_numel,), dtype)
        if found != expected:
            raise RunFailure(f"{file.path}: {name} is {found}, the manifest says {expected}; {advice}")


def _check_model(path: Path, manifest: Manifest, shards: Mapping[str, UnitShard]) -> None:
    """Raises `RunFailure` where the checkpoint is not of this model, layout or precision."""
    other_model = f"{path} was saved by another model: "
    resume = "resume with the run file that saved it, or state another checkpoint.directory"
    if lost := sorted(set(manifest.units) ^ set(shards)):
        where = "the checkpoint" if lost[0] in shards else "this model"
        raise RunFailure(f"{other_model}{where} has no unit {lost[0]!r}; {resume}")
    for unit, shard in shards.items():
        record, flat = manifest.units[unit], shard.flat
        saved = [(p.name, p.shape) for p in record.parameters]
        wanted = [(p.name, p.shape) for p in flat.parameters]
        if saved != wanted:
            ours, theirs = next((w, s) for w, s in zip([*wanted, None], [*saved, None], strict=False) if w != s)
            raise RunFailure(
                f"{other_model}in unit {unit} it has {_show(theirs)} where this model has {_show(ours)}; {resume}"
            )
        if record.num_shards != flat.num_shards:
            raise RunFailure(
                f"{path} was saved in {record.num_shards} shards a unit, this run has {flat.num_shards}, and restoring under "
                f"another layout is not supported; set layout.dp_shard = {record.num_shards} and the same layout.zero "
                f"to resume it"
            )
        if record.padded_numel != flat.padded_numel:
            raise RunFailure(
                f"{path}: unit {unit} was saved padded to {record.padded_numel} elements, this run pads to "
                f"{flat.padded_numel}, and restoring under another layout is not supported; resume with the layout that "
                f"saved it"
            )
        for role, tensor in shard.tensors.items():
            dtype = dtype_name(tensor.dtype)
            if record.dtypes.get(role) != dtype:
                raise RunFailure(
                    f"{path}: {role} of unit {unit} was saved as {record.dtypes.get(role)}, this run holds {dtype}; "
                    f"resume with the same precision.master"
                )


def _show(parameter: tuple[str, tuple[int, ...]] | None) -> str:
    return f"{parameter[0]} {list(parameter[1])}" if parameter else "nothing"
