"""Ranks as threads, and the shards of a small model, for the tests of this folder."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.checkpoint import UnitShard, save_checkpoint
from fourfold.config import ModelConfig
from fourfold.layout.flat import FlatLayout
from fourfold.model.spec import build_segments

MODEL = ModelConfig(
    num_layers=2, hidden_size=12, num_heads=2, num_kv_heads=1, head_dim=6, ffn_size=20, vocab_size=37, max_position=64
)
ROLES = ("master", "exp_avg", "exp_avg_sq")


class Run:
    """A run of `num_shards` x `replicas` ranks, whose whole state is known."""

    def __init__(self, num_shards: int, replicas: int = 1, seed: int = 0, model: ModelConfig = MODEL) -> None:
        self.num_shards, self.world_size = num_shards, num_shards * replicas
        self.flats: dict[str, FlatLayout] = {}
        self.state: dict[str, dict[str, Tensor]] = {}
        generator = torch.Generator().manual_seed(seed)
        for segment in build_segments(model):
            multiple = 16 * num_shards
            padded = -(-segment.numel // multiple) * multiple
            self.flats[segment.name] = FlatLayout(segment.name, segment.parameters, padded, num_shards)
            self.state[segment.name] = {role: torch.zeros(padded) for role in ROLES}
            for tensor in self.state[segment.name].values():
                tensor[: segment.numel].normal_(generator=generator)

    def shards(self, rank: int, empty: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, UnitShard]:
        """The shards of a rank: copies of the state, or NaN to be filled."""
        result = {}
        for unit, flat in self.flats.items():
            index = rank % self.num_shards
            start, end = flat.shard_range(index)
            tensors = {role: whole[start:end].to(dtype, copy=True) for role, whole in self.state[unit].items()}
            if empty:
                for tensor in tensors.values():
                    tensor.fill_(float("nan"))
            result[unit] = UnitShard(flat, index, tensors)
        return result

    def save(
        self, root: Path, step: int, keep: int = 2, info: Any = None, roots: dict[int, Path] | None = None
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
                is_writer=rank < self.num_shards,
                synchronize=lambda: barrier.wait() and None,
                keep=keep,
            )

        return on_threads(self.world_size, save)

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter's master copy, cut from the whole flat buffers."""
        return {
            spec.name: self.state[unit]["master"][start:end].view(spec.shape)
            for unit, flat in self.flats.items()
            for spec, start, end in flat.ranges()
        }


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
