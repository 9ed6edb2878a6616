"""Which copies in memory the next ranks go on from, which of their files a rank needs, and from where it gets them."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor

from fourfold.checkpoint.boxes import intersection
from fourfold.checkpoint.commit import Composer
from fourfold.checkpoint.file_bytes import CHUNK_BYTES
from fourfold.checkpoint.manifest import Manifest, PartRecord
from fourfold.checkpoint.save import file_name
from fourfold.checkpoint.unit_shard import UnitShard
from fourfold.config import RunFailure


@dataclass(frozen=True)
class MemoryCopy:
    """The state of one step in memory. `version`: of the regions that hold it. `holders`: by file, the machines that have it."""

    step: int
    version: int
    attempt: str
    manifest: Manifest
    holders: dict[str, list[int]]

    def to_json(self) -> str:
        return _COPY.dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> "MemoryCopy":
        return _COPY.validate_json(text)

    @staticmethod
    def rank_of(name: str) -> int:
        """The rank that wrote a file."""
        return int(name.removeprefix("rank-").removesuffix(".safetensors"))


_COPY = TypeAdapter(MemoryCopy)
_MARGIN = CHUNK_BYTES // 2
"""Elements beside a shard that are read with it: rows of so few are read in full."""


def choose(told: Sequence[Mapping[str, Any]], lineage: Mapping[str, Any]) -> MemoryCopy | None:
    """The copy of the newest step that is complete. `told`: each rank's machine and the heads of intact copies there. `lineage`: as
    `MemoryFile` has it; a machine that was away may offer copies of ranks that others replaced."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    holders: dict[tuple[str, str], list[int]] = {}
    for each in told:
        for rank, version, text in each["heads"]:
            head = json.loads(text)
            if head["fence"] == lineage.get("fence") or head["attempt"] == lineage.get("attempt"):
                found.setdefault(head["attempt"], {})[rank] = {**head, "version": version}
                holders.setdefault((head["attempt"], file_name(rank)), []).append(each["machine"])
    for attempt, heads in sorted(found.items(), key=lambda item: -max(head["step"] for head in item[1].values())):
        composer, first = Composer(attempt), heads[min(heads)]
        try:
            for rank, head in sorted(heads.items()):
                composer.add(file_name(rank), head["record"])
            manifest = composer.manifest(first["step"], first["info"], first["layout"], first["units"])
        except RunFailure:  # a part is missing
            continue
        return MemoryCopy(
            first["step"],
            first["version"],
            attempt,
            manifest,
            {name: sorted(set(holders[attempt, name])) for name in manifest.files},
        )
    return None


def needed_files(
    manifest: Manifest, shards: Mapping[str, UnitShard], extras: Collection[str] | Mapping[str, Tensor]
) -> list[str]:
    """The files that hold what a rank of any layout loads."""
    found = {manifest.extras[name].file for name in extras if name in manifest.extras}
    for unit, shard in shards.items():
        for part in manifest.units[unit].parts.values():
            found |= set(_of_part(part, shard))
    return sorted(found)


def _of_part(part: PartRecord, shard: UnitShard) -> Sequence[str]:
    boxes = [parameter.box for parameter in part.parameters]
    if boxes == list(shard.boxes) and part.padded_numel == shard.flat.padded_numel:
        (low, high), size = shard.flat.shard_range(shard.index), part.shard_numel
        return part.shards[max(0, low - _MARGIN) // size : -(-(high + _MARGIN) // size)]
    meets = any(intersection(one, other) is not None for one, other in zip(boxes, shard.boxes, strict=True))
    return part.shards if meets else ()


def moves(
    missing: Sequence[Sequence[str]], machines: Sequence[int], holders: Mapping[str, Sequence[int]]
) -> list[tuple[str, int, int]]:
    """(file, from rank, to rank) for each file that a machine's ranks lack: one of them gets it, ranks that have it take turns.
    `missing`: by rank."""
    members: dict[int, list[int]] = {}
    for rank, machine in enumerate(machines):
        members.setdefault(machine, []).append(rank)
    found: list[tuple[str, int, int]] = []
    moved: set[tuple[str, int]] = set()
    for rank, names in enumerate(missing):
        for name in names:
            if (name, machines[rank]) not in moved:
                moved.add((name, machines[rank]))
                source = next(machine for machine in holders[name] if machine in members)
                found.append((name, members[source][len(found) % len(members[source])], rank))
    return found
