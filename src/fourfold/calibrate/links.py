"""Collectives and transfers over sizes and groups, as the runtime starts and joins them; the processor time that they take."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from fourfold.calibrate.clock import synchronize
from fourfold.calibrate.steps import LINKS, agreed_repeats, table_spec
from fourfold.runtime.collectives import AxisGroup, Handle, make_groups

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "shift", "send")
SIZES = (256, 4096, 32768, 262144, 2097152, 8388608)
LEAST_REPEATS, MOST_REPEATS = 5, 60


def measure_links(
    rank: int, device: torch.device, ranks: int, window: float, sizes: tuple[int, ...] = SIZES
) -> dict[str, Any]:
    """Times by group size that divides `ranks`, kind and size of buffer: median seconds from start to join, all groups of that
    size at once; seconds of this rank's thread to start it; and processor seconds of this rank's process."""
    found: dict[str, Any] = {}
    size = ranks
    while size > 1:
        group = _group(ranks, size, rank, device)
        found[f"group_{size}"] = {kind: _sweep(kind, group, device, window, sizes) for kind in KINDS}
        size //= 2
    return found


def _group(ranks: int, size: int, rank: int, device: torch.device) -> AxisGroup:
    """The ranks beside this one, as many as `size`."""
    table = {
        "model": {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "ffn_size": 8, "vocab_size": 8},
        "batch": {"global_sequences": ranks, "sequence_length": 8, "steps": 1},
        "layout": {"dp_replicate": ranks // size, "dp_shard": size},
    }
    layout = table_spec(table, ranks, device.type).layout
    return make_groups(layout, rank, ["dp_shard"], 600.0, LINKS)["dp_shard"]


def _sweep(kind: str, group: AxisGroup, device: torch.device, window: float, sizes: tuple[int, ...]) -> dict[str, Any]:
    seconds, starts, processor = [], [], []
    for size in sizes:
        start = _starter(kind, group, size, device)
        start().wait()
        taken: list[float] = []
        begun: list[float] = []
        dist.barrier()
        used, since = time.process_time(), time.perf_counter()
        count = LEAST_REPEATS
        while len(taken) < count:
            before = time.perf_counter()
            handle = start()
            between = time.perf_counter()
            handle.wait()
            synchronize(device)
            after = time.perf_counter()
            taken.append(after - before)
            begun.append(between - before)
            if len(taken) == LEAST_REPEATS:
                repeats = agreed_repeats(after - since, LEAST_REPEATS, window, device)
                count = min(MOST_REPEATS, max(LEAST_REPEATS + 1, repeats))
        processor.append((time.process_time() - used) / len(taken))
        seconds.append(median(taken))
        starts.append(median(begun))
    return {"bytes": list(sizes), "seconds": seconds, "start_seconds": starts, "processor_seconds": processor}


def _starter(kind: str, group: AxisGroup, size: int, device: torch.device) -> Callable[[], Handle]:
    """Starts it on a buffer of `size` bytes, counted as `program.Collective` does."""
    full = torch.zeros(max(group.size, size // 4), device=device)
    part = torch.zeros(full.numel() // group.size, device=device)
    other = torch.zeros_like(full)
    if kind == "all_reduce":
        return lambda: group.all_reduce(full)
    if kind == "all_gather":
        return lambda: group.all_gather(full[: part.numel() * group.size], part)
    if kind == "reduce_scatter":
        return lambda: group.reduce_scatter(full[: part.numel() * group.size], other, part, True)
    if kind == "all_to_all":
        rows = part.numel() * group.size
        return lambda: group.all_to_all(other[:rows], full[:rows])
    if kind == "shift":
        return lambda: group.shift([other], [full])
    sends = group.index % 2 == 0
    peer = group.index + (1 if sends else -1)
    return lambda: group.send(full, peer) if sends else group.receive(other, peer)
