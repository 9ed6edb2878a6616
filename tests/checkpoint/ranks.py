"""Ranks as threads, and the shards of a small model, for the tests of this folder."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.checkpoint import UnitShard, load_checkpoint, save_checkpoint, unit_shard
from fourfold.config import ModelConfig
from fourfold.layout import Layout, flat_layouts
from fourfold.model.spec import build_segments

MODEL = ModelConfig(
    num_layers=2, hidden_size=12, num_heads=2, num_kv_heads=1, head_dim=6, ffn_size=20, vocab_size=37, max_position=64
)
ROLES = ("master", "exp_avg", "exp_avg_sq")


def layout_of(world: Mapping[str, int] | None = None, **degrees: Any) -> Layout:
    """A layout of these degrees; the rest is of no interest here."""
    base: dict[str, Any] = dict.fromkeys(("pp", "dp_replicate", "dp_shard", "cp", "tp"), 1)
    base.update(zero=1, schedule="1f1b", microbatch_sequences=1, num_microbatches=1, sequence_length=8, recompute=())
    base.update({"prefetch": 1, **(world or {}), **degrees})
    if base["pp"] > 1:
        base.setdefault("stage_ranks", tuple(range(base["pp"])))
    return Layout(**base)


class Run:
    """A run of any layout, whose whole state is known: by default ZeRO over `num_shards` ranks, in `replicas` copies."""

    def __init__(
        self,
        num_shards: int = 1,
        replicas: int = 1,
        seed: int = 0,
        model: ModelConfig = MODEL,
        layout: Layout | None = None,
        muon: bool = False,
    ) -> None:
        """`muon`: hidden matrices have no `exp_avg_sq`."""
        self.model, self.muon = model, muon
        self.layout = layout or layout_of(dp_shard=num_shards, dp_replicate=replicas)
        self.world_size = self.layout.world_size
        self.segments = build_segments(model)
        self.flats = flat_layouts(self.segments, self.layout)
        self.full: dict[str, dict[str, Tensor]] = {}
        generator = torch.Generator().manual_seed(seed)
        for segment in self.segments:
            for spec in segment.parameters:
                self.full[spec.name] = {role: torch.randn(spec.shape, generator=generator) for role in ROLES}

    def units_of(self, rank: int) -> list[str]:
        """The units that a rank's stages hold: segments dealt out evenly unless `stages` says how many each stage has, and a tied
        embedding on the last stage too."""
        layout, count = self.layout, len(self.segments)
        stages = [i * layout.pp // count for i in range(count)]
        if layout.segments_per_stage:
            stages = [
                layout.stage_ranks[stage] for stage, size in enumerate(layout.segments_per_stage) for _ in range(size)
            ]
        own = [s for s, stage in zip(self.segments, stages, strict=True) if stage == layout.coordinates(rank)["pp"]]
        return list(dict.fromkeys(name for segment in own for name in segment.units))

    def buffer(self, unit: str, role: str, rank: int) -> Tensor:
        """The flat buffer of a rank's part."""
        flat, own = self.flats[unit], self.layout.coordinates(rank)
        result = torch.zeros(flat.padded_numel)
        for parameter, start, _ in flat.ranges():
            box = tuple(slice(*interval) for interval in parameter.box(own))
            part = self.full[parameter.name][role][box].reshape(-1)
            result[start : start + len(part)] = part
        return result

    def index(self, unit: str, rank: int) -> int:
        """Which shard of its part a rank holds."""
        flat, own, index = self.flats[unit], self.layout.coordinates(rank), 0
        if flat.num_shards > 1:
            for axis in self.layout.shard_axes(flat.domain):
                index = index * self.layout.degree(axis) + own[axis]
        return index

    def shards(self, rank: int, empty: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, UnitShard]:
        """The shards of a rank: copies of the state, or NaN to be filled."""
        result = {}
        for unit in self.units_of(rank):
            flat, index = self.flats[unit], self.index(unit, rank)
            start, end = flat.shard_range(index)
            without = {"exp_avg_sq": flat.num_matrices} if self.muon else {}
            tensors = {}
            for role in ROLES:
                first = max(start, sum(p.numel for p in flat.parameters[: without.get(role, 0)]))
                tensors[role] = self.buffer(unit, role, rank)[first : max(first, end)].to(dtype, copy=True)
            if empty:
                for tensor in tensors.values():
                    tensor.fill_(float("nan"))
            result[unit] = unit_shard(flat, index, tensors, self.layout, rank, without)
        return result

    def save(
        self,
        root: Path,
        step: int,
        keep: int = 2,
        info: Any = None,
        roots: dict[int, Path] | None = None,
        extras: Callable[[int], dict[str, Tensor]] = lambda rank: {},
    ) -> list:
        """Every rank saves at once. The result of each: its folder, or its exception."""
        barrier = threading.Barrier(self.world_size, timeout=20)

        def save(rank: int) -> Path:
            return save_checkpoint(
                (roots or {}).get(rank, root),
                step,
                self.shards(rank),
                info or {"step": step},
                rank=rank,
                synchronize=lambda: barrier.wait() and None,
                keep=keep,
                units=list(self.flats),
                extras=extras(rank),
                layout=self.layout,
            )

        return on_threads(self.world_size, save)

    def load(self, folder: Path, shards: dict[str, UnitShard], **options: Any) -> dict[str, Any]:
        """Loads as a rank of this run does."""
        return load_checkpoint(folder, shards, units=list(self.flats), **options)

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter's master copy, in the order of the model's buffers."""
        return {p.name: self.full[p.name]["master"] for flat in self.flats.values() for p in flat.parameters}


def on_threads(count: int, work: Callable[[int], Any]) -> list:
    results: list = [None] * count

    def body(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())
