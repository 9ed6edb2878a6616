"""The manifest of a checkpoint: what was saved, under which layout, in which files, with which checksums."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from fourfold.checkpoint.boxes import Box, box_numel, tiling_problem
from fourfold.checkpoint.file_bytes import CHUNK_HASHES, FileDigest
from fourfold.checkpoint.folders import MANIFEST, checkpoints, step_of
from fourfold.checkpoint.tensor_file import DamagedCheckpoint
from fourfold.config import FinalFailure
from fourfold.config.whole_file import bounded

VERSION = 3
_MANIFEST_BYTES, _BYTES_PER_FILE, _MAX_MANIFEST_BYTES = 1 << 22, 1 << 17, 1 << 27
_FILE_NAME = re.compile(r"rank-\d{5,10}\.safetensors")
NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}")
_DTYPES = frozenset(("fp64", "fp32", "bf16", "int16"))
_STRICT = ConfigDict(extra="forbid", strict=True)
_Count = Annotated[int, Field(ge=0, lt=2**53)]


@with_config(_STRICT)
@dataclass(frozen=True)
class ParameterRecord:
    """One full parameter."""

    name: str
    shape: tuple[_Count, ...]


@with_config(_STRICT)
@dataclass(frozen=True)
class PartParameter:
    """Where a part's box of a parameter lies: elements [start, end) of the part's flat buffer, row by row."""

    box: tuple[tuple[_Count, _Count], ...]
    start: _Count
    end: _Count


@with_config(_STRICT)
@dataclass(frozen=True)
class PartRecord:
    """One model-parallel rank's part of a unit: a flat buffer of `padded_numel` elements, cut into `num_shards` equal shards, one
    for each data-parallel rank that wrote.

    `parameters`: one for each of the unit's, in their order. `shards`: the file that holds shard 0, 1, ...; in it the tensor
    `UNIT.ROLE` is that shard, [padded_numel / num_shards].
    """

    padded_numel: _Count
    num_shards: Annotated[int, Field(ge=1)]
    parameters: tuple[PartParameter, ...]
    shards: tuple[str, ...]

    @property
    def shard_numel(self) -> int:
        return self.padded_numel // self.num_shards

    def first(self, without: int) -> int:
        """The first element of a role that so many of the first parameters have not."""
        return self.parameters[without - 1].end if without else 0


@with_config(_STRICT)
@dataclass(frozen=True)
class UnitRecord:
    """One unit. `dtypes`: the number format of each role (`master`, `exp_avg`, ...). `parts`: by name (`tp0`, `ep1.etp0`; empty
    where the unit is not split); their boxes make up every parameter, and equal boxes hold copies. `without`: by role, how many of
    the first parameters have no such elements; shards leave these out."""

    dtypes: dict[str, str]
    parameters: tuple[ParameterRecord, ...]
    parts: dict[str, PartRecord]
    without: dict[str, _Count] = field(default_factory=dict)


@with_config(_STRICT)
@dataclass(frozen=True)
class ExtraRecord:
    """A tensor beside the units: the tensor `extra/NAME` of `file`."""

    file: str
    dtype: str
    shape: tuple[_Count, ...]


@with_config(_STRICT)
@dataclass(frozen=True)
class Manifest:
    """All of a checkpoint but the tensors. `attempt` names the save that wrote it; `info` is the caller's, as JSON; `layout`:
    the degrees of the axes that it was saved under."""

    version: int
    step: _Count
    attempt: str
    info: dict[str, Any]
    layout: dict[str, _Count]
    files: dict[str, FileDigest]
    units: dict[str, UnitRecord]
    extras: dict[str, ExtraRecord]

    def to_json(self) -> str:
        """The text of `manifest.json`, with its own checksum. Raises `TypeError` when `info` is no JSON."""
        document = json.loads(json.dumps(asdict(self)))  # as it will be read: keys are text, tuples are lists
        return json.dumps({**document, "sha256": _digest(document)}, indent=1)


def read_manifest(checkpoint: Path) -> Manifest:
    """Reads and checks `checkpoint/manifest.json`.

    Raises `DamagedCheckpoint` when it is missing, changed, inconsistent or of another step than its folder, and
    `FinalFailure` when another version wrote it.
    """
    try:
        return _read(checkpoint)
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{checkpoint / MANIFEST} does not exist", _not_a_checkpoint(checkpoint)) from None
    except _Damage as damage:
        raise DamagedCheckpoint(f"{checkpoint / MANIFEST} {damage}", how_to_go_on(checkpoint)) from None
    except _OtherVersion as other:
        who = "a newer" if other.version > VERSION else "an older"
        cure = "update it" if other.version > VERSION else how_to_go_on(checkpoint)
        raise FinalFailure(
            f"{checkpoint / MANIFEST}: version = {other.version} was written by {who} fourfold; allowed: {VERSION}; {cure}"
        ) from None


class _Damage(Exception):
    """The words on a manifest that is not what was saved."""


class _OtherVersion(Exception):
    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def _read(checkpoint: Path) -> Manifest:
    """Raises `FileNotFoundError`, `_Damage` and `_OtherVersion`."""
    try:
        document = json.loads(_bounded_text(checkpoint / MANIFEST))
        signed = isinstance(document, dict) and document.pop("sha256", None) == _digest(document)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise _Damage(f"is not readable JSON ({error})") from None
    if not isinstance(document, dict):
        raise _Damage("holds no JSON object")
    version = document.get("version")
    if isinstance(version, int) and version != VERSION:
        raise _OtherVersion(version)
    if not signed:
        raise _Damage("was changed after it was written (its checksum does not match)")
    try:
        manifest = TypeAdapter(Manifest).validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise _Damage(f"is malformed: {key}: {first['msg']}") from None
    problem = _inconsistency(manifest)
    if problem is not None:
        raise _Damage(f"is inconsistent: {problem}")
    if step_of(checkpoint) not in (None, manifest.step):
        raise _Damage(f"is of step {manifest.step}: the folder was copied or renamed to {checkpoint.name}")
    return manifest


def _bounded_text(path: Path) -> bytes:
    """The file's bytes. Raises `OSError`, and `ValueError` where it is none, or where so few files beside it cannot need so long a
    manifest."""
    return bounded(path, min(_MANIFEST_BYTES + _BYTES_PER_FILE * len(list(path.parent.iterdir())), _MAX_MANIFEST_BYTES))


def how_to_go_on(checkpoint: Path) -> str:
    """Tells what to do about a checkpoint that cannot be used. Every such message ends with this."""
    step = step_of(checkpoint)
    if step is None:
        return "name another checkpoint"
    earlier = [path for path in checkpoints(checkpoint.parent) if (step_of(path) or 0) < step]
    if readable := next((path for path in reversed(earlier) if _is_readable(path)), None):
        return f"delete the folder {checkpoint} to resume from {readable.name}"
    if earlier:
        return f"no earlier checkpoint can be read either; move {checkpoint.parent} away to start from step 0"
    return f"delete the folder {checkpoint}; there is no earlier checkpoint, so the run starts from step 0"


def _is_readable(checkpoint: Path) -> bool:
    try:
        return _read(checkpoint) is not None
    except (OSError, _Damage, _OtherVersion):
        return False


def _not_a_checkpoint(folder: Path) -> str:
    inside = checkpoints(folder)
    if inside:
        return f"{folder} is not itself a checkpoint; name one of those in it, for example {inside[-1]}"
    return (
        f"{folder} is not a complete checkpoint; name a folder such as checkpoints/step-000100 that holds a {MANIFEST}"
    )


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _inconsistency(manifest: Manifest) -> str | None:
    """Describes the first contradiction in the manifest; None without one. Only plain file names reach the file system."""
    if manifest.version != VERSION:
        return f"version = {manifest.version} is unknown; allowed: {VERSION}"
    for name, file in manifest.files.items():
        if not _FILE_NAME.fullmatch(name):
            return f"files: {name!r} is not a rank's file name such as 'rank-00000.safetensors'"
        if file.size_bytes < 8 or not re.fullmatch(r"[0-9a-f]{64}", file.sha256) or file.chunk_hash not in CHUNK_HASHES:
            return f"files.{name}: size or checksum is malformed"
    seen: set[str] = set()
    for name, unit in manifest.units.items():
        problem = unit_inconsistency(unit, manifest.files)
        if problem is None and not NAME.fullmatch(name):
            problem = "is not a unit's name"
        for parameter in unit.parameters:
            if problem is None and parameter.name in seen:
                problem = f"parameter {parameter.name} occurs twice"
            seen.add(parameter.name)
        if problem is not None:
            return f"units.{name}: {problem}"
    for name, extra in manifest.extras.items():
        if extra.file not in manifest.files or not NAME.fullmatch(name) or extra.dtype not in _DTYPES:
            return f"extras.{name}: its name, file or dtype is malformed"
        if prod(extra.shape) * 2 > manifest.files[extra.file].size_bytes:
            return f"extras.{name}: its file is too small to hold it"
    return None


def unit_inconsistency(unit: UnitRecord, files: Mapping[str, FileDigest]) -> str | None:
    """Describes the first contradiction in a unit's record, for example parts that leave a gap; None without one."""
    if not unit.dtypes or set(unit.dtypes.values()) - _DTYPES:
        return f"dtypes = {unit.dtypes} must name fp64, fp32, bf16 or int16 for each role"
    if not unit.parts:
        return "has no part"
    if not unit.without.keys() <= unit.dtypes.keys() or any(n > len(unit.parameters) for n in unit.without.values()):
        return f"without = {unit.without} must name roles, and at most {len(unit.parameters)} parameters"
    for name, part in unit.parts.items():
        if not re.fullmatch(r"((tp|ep|etp)\d{1,7}(\.(tp|ep|etp)\d{1,7})*)?", name):
            return f"parts: {name!r} is not a part's name such as 'tp0'"
        problem = _part_inconsistency(part, unit, files)
        if problem is not None:
            return f"{problem} (part {name!r})" if name else problem
    for index, parameter in enumerate(unit.parameters):
        boxes: list[Box] = [part.parameters[index].box for part in unit.parts.values()]
        problem = tiling_problem(parameter.shape, boxes)
        if problem is not None:
            return f"parameter {parameter.name}: {problem}"
    return None


def _part_inconsistency(part: PartRecord, unit: UnitRecord, files: Mapping[str, FileDigest]) -> str | None:
    if part.padded_numel % part.num_shards:
        return f"padded_numel = {part.padded_numel} is not a multiple of num_shards = {part.num_shards}"
    if len(part.shards) != part.num_shards:
        return f"lists {len(part.shards)} shards, but num_shards = {part.num_shards}"
    if unknown := set(part.shards) - files.keys():
        return f"shard file {min(unknown)!r} is not among the files"
    if len(part.parameters) != len(unit.parameters):
        return f"has boxes of {len(part.parameters)} parameters, the unit has {len(unit.parameters)}"
    offset = 0
    for full, parameter in zip(unit.parameters, part.parameters, strict=True):
        size = parameter.end - parameter.start
        if parameter.start < offset or size < 1 or any(low >= high for low, high in parameter.box):
            return f"parameter {full.name}: start, end and box do not agree"
        if size != box_numel(parameter.box):
            return f"parameter {full.name}: start, end and box do not agree"
        offset = parameter.end
    if offset > part.padded_numel:
        return f"its parameters have {offset} elements, padded_numel is {part.padded_numel}"
    held = sum(part.padded_numel - part.first(unit.without.get(role, 0)) for role in unit.dtypes)
    if sum(files[name].size_bytes for name in set(part.shards)) < held * 2:
        return "its files are too small to hold it"
    return None
