"""Loading: everything is checked, names, shapes, layout and checksums, before the first element is copied."""

import hashlib
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from torch import Tensor

from fourfold.checkpoint.fit import check_extras, check_fits
from fourfold.checkpoint.manifest import Manifest, how_to_go_on, read_manifest
from fourfold.checkpoint.tensor_file import DamagedCheckpoint, TensorFile
from fourfold.checkpoint.unit_shard import UnitShard, extra_name, file_metadata, tensor_name
from fourfold.layout import Layout


def load_checkpoint(
    path: Path,
    shards: Mapping[str, UnitShard],
    *,
    units: Collection[str] | None = None,
    extras: Mapping[str, Tensor] | None = None,
    layout: Layout | None = None,
) -> dict[str, Any]:
    """Fills the tensors of `shards` and `extras` in place and returns the `info` that was saved.

    `shards`: this rank's shard of its part of every unit that it holds; replicas load the same shard. The roles asked for may be
    fewer than those saved. `units`: the names of all units of the model; by default those in `shards`. `layout`: as in
    `save_checkpoint`. Raises, with the tensors untouched, `DamagedCheckpoint` when the checkpoint is not whole, and another
    `RunFailure` when it was saved by another model or layout.
    """
    manifest = read_manifest(path)
    extras = extras or {}
    check_fits(path, manifest, shards, set(shards) if units is None else set(units), layout)
    check_extras(path, manifest, extras)
    places = {unit: manifest.units[unit].parts[shard.part].shards[shard.index] for unit, shard in shards.items()}
    needed = {*places.values(), *(manifest.extras[name].file for name in extras)}
    files = open_files(path, manifest, needed)
    for unit, shard in shards.items():
        for role, tensor in shard.tensors.items():
            tensor.copy_(files[places[unit]].read(tensor_name(unit, role)))
    for name, tensor in extras.items():
        tensor.copy_(files[manifest.extras[name].file].read(extra_name(name)))
    return manifest.info


def open_files(path: Path, manifest: Manifest, needed: AbstractSet[str]) -> dict[str, TensorFile]:
    """Checks the lengths of all files, checksums and tensors of the needed ones, and opens these.

    Raises `DamagedCheckpoint` naming the file and what to do.
    """
    advice = how_to_go_on(path)
    for name, record in manifest.files.items():
        try:
            size_bytes = (path / name).stat().st_size
        except OSError as error:
            raise DamagedCheckpoint(f"{path / name} is missing or unreadable ({error.strerror})", advice) from None
        if size_bytes != record.size_bytes:
            problem = f"{path / name} has {size_bytes} bytes, not the {record.size_bytes} saved"
            raise DamagedCheckpoint(problem, advice)
    files = {}
    for name in sorted(needed):
        try:
            with open(path / name, "rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise DamagedCheckpoint(f"{path / name} is unreadable ({error.strerror})", advice) from None
        if found != manifest.files[name].sha256:
            raise DamagedCheckpoint(f"{path / name} is corrupt: its SHA-256 is not the one saved", advice)
        files[name] = TensorFile(path / name, advice)
    held: dict[str, dict[str, tuple[str, int]]] = {name: {} for name in files}
    for unit, described in manifest.units.items():
        for part_name, part in described.parts.items():
            for index, name in enumerate(part.shards):
                if name not in files:
                    continue
                held[name][unit] = (part_name, index)
                for role, dtype in described.dtypes.items():
                    _check_tensor(files[name], tensor_name(unit, role), (part.shard_numel,), dtype, advice)
    for name, extra in manifest.extras.items():
        if extra.file in needed:
            _check_tensor(files[extra.file], extra_name(name), extra.shape, extra.dtype, advice)
    for name, file in files.items():
        if not file_metadata(manifest.step, held[name]).items() <= file.metadata.items():
            problem = f"{file.path} holds other shards, or those of another step, than the manifest says"
            raise DamagedCheckpoint(problem, advice)
    return files


def _check_tensor(file: TensorFile, name: str, shape: tuple[int, ...], dtype: str, advice: str) -> None:
    if name not in file.names:
        raise DamagedCheckpoint(f"{file.path} lacks the tensor {name}", advice)
    found, expected = (file.shape(name), file.dtype(name)), (shape, dtype)
    if found != expected:
        raise DamagedCheckpoint(f"{file.path}: {name} is {found}, the manifest says {expected}", advice)
