"""The manifest of a checkpoint: what was saved, under which layout, in which files, with which checksums."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from fourfold.checkpoint.folders import MANIFEST, checkpoints, step_of
from fourfold.checkpoint.tensor_file import FileRecord
from fourfold.config import RunFailure

VERSION = 1
_MAX_MANIFEST_BYTES = 1 << 28
_FILE_NAME = re.compile(r"rank-\d{5,10}\.safetensors")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}")
_STRICT = ConfigDict(extra="forbid", strict=True)
_Count = Annotated[int, Field(ge=0, lt=2**53)]


@with_config(_STRICT)
@dataclass(frozen=True)
class ParameterRecord:
    """Where one parameter lies: elements [start, end) of its unit's flat buffer, row by row."""

    name: str
    shape: tuple[_Count, ...]
    start: _Count
    end: _Count


@with_config(_STRICT)
@dataclass(frozen=True)
class UnitRecord:
    """One unit: its flat buffer of `padded_numel` elements, cut into `num_shards` equal shards.

    `dtypes`: the number format of each role (`master`, `exp_avg`, ...). `shards`: the file that holds shard 0, 1, ...;
    in it the tensor `UNIT.ROLE` is that shard, [padded_numel / num_shards].
    """

    padded_numel: _Count
    num_shards: Annotated[int, Field(ge=1)]
    parameters: tuple[ParameterRecord, ...]
    dtypes: dict[str, str]
    shards: tuple[str, ...]

    @property
    def shard_numel(self) -> int:
        return self.padded_numel // self.num_shards


@with_config(_STRICT)
@dataclass(frozen=True)
class Manifest:
    """All of a checkpoint but the tensors. `attempt` names the save that wrote it; `info` is the caller's, as JSON."""

    version: int
    step: _Count
    attempt: str
    info: dict[str, Any]
    files: dict[str, FileRecord]
    units: dict[str, UnitRecord]

    def to_json(self) -> str:
        """The text of `manifest.json`, with its own checksum. Raises `TypeError` when `info` is no JSON."""
        document = json.loads(json.dumps(asdict(self)))  # as it will be read: keys are text, tuples are lists
        return json.dumps({**document, "sha256": _digest(document)}, indent=1)


def read_manifest(checkpoint: Path) -> Manifest:
    """Reads and checks `checkpoint/manifest.json`. Raises `RunFailure` when it is missing, changed or inconsistent."""
    path = checkpoint / MANIFEST
    advice = how_to_go_on(checkpoint)
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise RunFailure(f"{path} has {path.stat().st_size} bytes, more than a manifest can have; {advice}")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunFailure(f"{path} does not exist: {_not_a_checkpoint(checkpoint)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunFailure(f"{path} is not readable JSON ({error}); {advice}") from None
    if not isinstance(document, dict):
        raise RunFailure(f"{path} holds no JSON object; {advice}")
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise RunFailure(f"{path}: version = {version} was written by a newer fourfold; allowed: {VERSION}; update it")
    if document.pop("sha256", None) != _digest(document):
        raise RunFailure(f"{path} was changed after it was written (its checksum does not match); {advice}")
    try:
        manifest = TypeAdapter(Manifest).validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise RunFailure(f"{path}: {key}: {first['msg']}; {advice}") from None
    problem = _inconsistency(manifest)
    if problem is not None:
        raise RunFailure(f"{path}: {problem}; {advice}")
    return manifest


def how_to_go_on(checkpoint: Path) -> str:
    """What to do about a checkpoint that cannot be used: the end of each such message."""
    step = step_of(checkpoint)
    if step is None:
        return "name another checkpoint"
    earlier = [path for path in checkpoints(checkpoint.parent) if (step_of(path) or 0) < step]
    if earlier:
        return f"delete the folder {checkpoint} to resume from {earlier[-1].name}"
    return f"delete the folder {checkpoint}; there is no earlier checkpoint, so the run starts from step 0"


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
    """What contradicts itself, or None. A name that is no plain file name never reaches the file system."""
    if manifest.version != VERSION:
        return f"version = {manifest.version} is unknown; allowed: {VERSION}"
    for name, file in manifest.files.items():
        if not _FILE_NAME.fullmatch(name):
            return f"files: {name!r} is not a rank's file name such as 'rank-00000.safetensors'"
        if file.size_bytes < 8 or not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
            return f"files.{name}: size or checksum is malformed"
    seen: set[str] = set()
    for name, unit in manifest.units.items():
        problem = _unit_inconsistency(unit, manifest.files)
        if problem is None and not _NAME.fullmatch(name):
            problem = "is not a unit's name"
        for parameter in unit.parameters:
            if problem is None and parameter.name in seen:
                problem = f"parameter {parameter.name} occurs twice"
            seen.add(parameter.name)
        if problem is not None:
            return f"units.{name}: {problem}"
    return None


def _unit_inconsistency(unit: UnitRecord, files: dict[str, FileRecord]) -> str | None:
    if unit.padded_numel % unit.num_shards:
        return f"padded_numel = {unit.padded_numel} is not a multiple of num_shards = {unit.num_shards}"
    if len(unit.shards) != unit.num_shards:
        return f"lists {len(unit.shards)} shards, but num_shards = {unit.num_shards}"
    if unknown := set(unit.shards) - files.keys():
        return f"shard file {min(unknown)!r} is not among the files"
    if not unit.dtypes or set(unit.dtypes.values()) - {"fp64", "fp32", "bf16"}:
        return f"dtypes = {unit.dtypes} must name fp64, fp32 or bf16 for each role"
    offset = 0
    for parameter in unit.parameters:
        size = parameter.end - parameter.start
        if parameter.start != offset or size < 1 or size != prod(parameter.shape):
            return f"parameter {parameter.name}: start, end and shape do not agree"
        offset = parameter.end
    if offset > unit.padded_numel:
        return f"its parameters have {offset} elements, padded_numel is {unit.padded_numel}"
    if sum(files[name].size_bytes for name in set(unit.shards)) < unit.padded_numel * len(unit.dtypes) * 2:
        return "its files are too small to hold it"
    return None
