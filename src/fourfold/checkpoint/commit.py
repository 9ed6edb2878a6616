"""The record that each writer leaves of its file, and the manifest that rank 0 composes of all records when nothing is missing."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor

from fourfold.checkpoint.boxes import box_numel
from fourfold.checkpoint.file_bytes import FileDigest
from fourfold.checkpoint.manifest import (
    NAME,
    VERSION,
    ExtraRecord,
    Manifest,
    ParameterRecord,
    PartParameter,
    PartRecord,
    UnitRecord,
    unit_inconsistency,
)
from fourfold.checkpoint.tensor_file import dtype_name
from fourfold.checkpoint.unit_shard import UnitShard, extra_name, tensor_name
from fourfold.config import RunFailure


def rank_tensors(shards: Mapping[str, UnitShard], extras: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a rank's file. Raises `ValueError` for a shard of another size than its layout says."""
    tensors = {
        tensor_name(unit, role): piece for unit, shard in shards.items() for role, piece in shard.pieces().items()
    }
    for name, tensor in extras.items():
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an extra tensor; allowed: letters, digits, '_', '.', '-'")
        tensors[extra_name(name)] = tensor
    return tensors


def rank_record(shards: Mapping[str, UnitShard], extras: Mapping[str, Tensor], file: FileDigest, attempt: str) -> str:
    """The JSON text of a writer's record."""
    units = {
        unit: {"index": shard.piece, "part": shard.part, **asdict(_describe(shard))} for unit, shard in shards.items()
    }
    described = {
        name: {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)} for name, tensor in extras.items()
    }
    return json.dumps({"attempt": attempt, "file": asdict(file), "units": units, "extras": described})


def _describe(shard: UnitShard) -> UnitRecord:
    """A unit with this shard's part alone, whose `shards` are for rank 0 to fill."""
    flat = shard.flat
    full = tuple(ParameterRecord(p.name, p.spec.shape) for p in flat.parameters)
    starts = [start for _, start, _ in flat.ranges()]
    boxes = tuple(
        PartParameter(box, start, start + box_numel(box)) for box, start in zip(shard.boxes, starts, strict=True)
    )
    dtypes = {role: dtype_name(tensor.dtype) for role, tensor in shard.tensors.items()}
    part = PartRecord(flat.padded_numel, shard.num_pieces, boxes, ())
    return UnitRecord(dtypes, full, {shard.part: part}, dict(shard.without))


class Composer:
    """Puts the writers' records together, and says what contradicts or is missing. Raises `RunFailure`."""

    def __init__(self, attempt: str) -> None:
        self._attempt = attempt
        self.files: dict[str, FileDigest] = {}
        self.units: dict[str, UnitRecord] = {}
        self.extras: dict[str, ExtraRecord] = {}
        self._holders: dict[tuple[str, str], dict[int, str]] = {}

    def add(self, name: str, text: str) -> None:
        """Takes one writer's record of its file in."""
        record = json.loads(text)
        if record["attempt"] != self._attempt:
            raise RunFailure(f"{name} is of another save; do two runs share this folder?")
        self.files[name] = FileDigest(**record["file"])
        for unit, described in record["units"].items():
            index, part = described.pop("index"), described.pop("part")
            self._add_unit(unit, part, TypeAdapter(UnitRecord).validate_json(json.dumps(described)), name)
            holders = self._holders.setdefault((unit, part), {})
            if index in holders:
                raise RunFailure(f"shard {index} of {_of(unit, part)} is in {holders[index]} and in {name}")
            holders[index] = name
        for extra, described in record["extras"].items():
            if extra in self.extras:
                raise RunFailure(f"extra tensor {extra} is in {self.extras[extra].file} and in {name}")
            self.extras[extra] = ExtraRecord(name, described["dtype"], tuple(described["shape"]))

    def _add_unit(self, unit: str, part: str, described: UnitRecord, name: str) -> None:
        known = self.units.setdefault(unit, described)
        alike = replace(known, parts={}) == replace(described, parts={})
        if not alike or known.parts.get(part, described.parts[part]) != described.parts[part]:
            raise RunFailure(f"{name} describes {_of(unit, part)} otherwise than another rank")
        known.parts[part] = described.parts[part]

    def manifest(
        self, step: int, info: Mapping[str, Any], layout: Mapping[str, int], units: Collection[str]
    ) -> Manifest:
        """The manifest, when every unit is there, every shard of every part, and every element of every parameter."""
        if not self.units:
            raise RunFailure("no rank wrote anything; do all ranks share this folder?")
        if missing := [unit for unit in units if unit not in self.units]:
            raise RunFailure(f"no rank wrote unit {missing[0]}; do all ranks share this folder?")
        ordered = {unit: self.units[unit] for unit in dict.fromkeys((*units, *self.units))}
        complete = {unit: self._complete(unit, record) for unit, record in ordered.items()}
        return Manifest(VERSION, step, self._attempt, dict(info), dict(layout), self.files, complete, self.extras)

    def _complete(self, unit: str, record: UnitRecord) -> UnitRecord:
        parts = {}
        for name, part in sorted(record.parts.items()):
            holders = self._holders[unit, name]
            if missing := set(range(part.num_shards)) - holders.keys():
                raise RunFailure(
                    f"no rank wrote shard {min(missing)} of {_of(unit, name)}; do all ranks share this folder?"
                )
            parts[name] = replace(part, shards=tuple(holders[index] for index in range(part.num_shards)))
        result = replace(record, parts=parts)
        problem = unit_inconsistency(result, self.files)
        if problem is not None:
            raise RunFailure(f"unit {unit}: {problem}; do all ranks share this folder?")
        return result


def _of(unit: str, part: str) -> str:
    return f"part {part} of unit {unit}" if part else f"unit {unit}"
