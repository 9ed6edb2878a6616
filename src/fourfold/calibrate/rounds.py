"""One round of measurements of so many ranks at once, and several rounds as one.

Collectives and transfers are measured over sizes and groups, as the runtime starts and joins them, with the processor time that
they take.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from fourfold.calibrate.budget import Budget
from fourfold.calibrate.clock import synchronize
from fourfold.calibrate.kernels import measure_attention, measure_gemms
from fourfold.calibrate.ranks import Ranks
from fourfold.calibrate.steps import LINKS, agreed_repeats, measure_layouts, measure_steps, measure_together, table_spec
from fourfold.runtime.collectives import AxisGroup, Handle, make_groups

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "shift", "send")
SIZES = (256, 4096, 32768, 262144, 2097152, 8388608)
LEAST_REPEATS, MOST_REPEATS = 5, 60
Table = dict[str, Any]

MODELS = (
    {"num_layers": 2, "hidden_size": 128, "num_heads": 4, "ffn_size": 384, "vocab_size": 1024},
    {"num_layers": 2, "hidden_size": 256, "num_heads": 8, "ffn_size": 704, "vocab_size": 2048},
    {"num_layers": 2, "hidden_size": 512, "num_heads": 8, "ffn_size": 1408, "vocab_size": 4096},
)
BATCHES = ((2, 1, 128), (4, 2, 256))
"""Sequences of a step and of a microbatch, tokens of a sequence."""
TOGETHER = slice(None, None, len(BATCHES))
"""Places, among the run tables, of those whose steps ranks also begin together."""
LAYOUTS = ({"tp": 2, "sequence_parallel": True}, {"tp": 2}, {"cp": 2, "cp_method": "ring"})
"""Layouts that split layers or sequences in two: they have collectives in segments."""


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


@dataclass(frozen=True)
class Measurements:
    """`kernels`: products and attention by themselves. `steps`: of each run table, seconds of a step and of each kind of
    instruction, all ranks at once. Neither where ranks take turns on the cores, for which single kernels are too short.
    `together[n]`: of some of the tables, seconds until n + 1 ranks that begin a step together, each for itself, have all made it.
    `layouts`: seconds of a step of `LAYOUTS`."""

    kernels: Table | None
    steps: list[Table]
    together: list[list[float]]
    links: Table
    layouts: list[float]


def step_tables(dtype: str, quick: bool) -> list[Table]:
    """Run tables whose instructions are timed."""
    models, batches = (MODELS[:1], BATCHES[:1]) if quick else (MODELS, BATCHES)
    return [
        {
            "model": model,
            "batch": {"global_sequences": rows, "sequence_length": length, "steps": 1},
            "layout": {"microbatch_sequences": size},
            "precision": {"compute": dtype},
        }
        for model in models
        for rows, size, length in batches
    ]


def layout_tables(dtype: str, ranks: int) -> list[Table]:
    """Run tables of `LAYOUTS`, for so many ranks."""
    rest = {"dp_shard": ranks // 2, "zero": 0, "microbatch_sequences": 2}
    return [
        {
            "model": MODELS[1],
            "batch": {"global_sequences": 2 * ranks, "sequence_length": 256, "steps": 1},
            "layout": {**rest, **layout},
            "precision": {"compute": dtype},
        }
        for layout in LAYOUTS
    ]


def measure_round(
    group: Ranks, dtype: str, device: str, budget: Budget, alone: bool, by_library: tuple[str, ...]
) -> Measurements:
    """All measurements of the group's ranks. `alone`: each rank has cores or a device of its own. `by_library`: the kinds of
    matmuls that oneDNN computes."""
    run = partial(group.run, by_library=by_library)
    tables, several = step_tables(dtype, budget.quick), group.size > 1
    kernels, steps = None, []
    if alone:
        kernels = {
            "gemms": _middle(run(measure_gemms, dtype=dtype, window=budget.kernel)),
            "attention": _middle(group.run(measure_attention, dtype=dtype, window=budget.kernel)),
        }
        steps = _middle(run(measure_steps, tables=tables, window=budget.steps))
    together, links, layouts = [], {}, []
    if several:
        turns = run(measure_together, tables=tables[TOGETHER], window=budget.steps)
        together = slowest(turns)
        sizes = SIZES[1:4] if budget.quick else SIZES
        links = _middle(group.run(measure_links, ranks=group.size, window=budget.link, sizes=sizes))
    if several and device == "cpu":
        answers = run(measure_layouts, tables=layout_tables(dtype, group.size), ranks=group.size, steps=5)
        layouts = _middle(answers)
    return Measurements(kernels, steps, together, links, layouts)


def merged(rounds: Sequence[Measurements]) -> Measurements:
    """The median of all rounds, number by number: one that something else disturbed has no part in it."""
    return Measurements(
        **{each.name: _middle([getattr(one, each.name) for one in rounds]) for each in fields(Measurements)}
    )


def drift(rounds: Sequence[Measurements]) -> float:
    """How much longer the steps of the slowest round took than those of the fastest, as a share."""
    totals = [sum(each.together[-1] if each.together else [table["step"] for table in each.steps]) for each in rounds]
    return max(totals) / min(totals) - 1


def slowest(ranks: Sequence[list[list[list[float]]]]) -> list[list[float]]:
    """The median over steps of what the last rank took; steps in the innermost lists."""
    return [
        [median(map(max, zip(*steps, strict=True))) for steps in zip(*tables, strict=True)]
        for tables in zip(*ranks, strict=True)
    ]


def _middle(answers: Sequence[Any]) -> Any:
    """The median, number by number; None of nothing."""
    first = answers[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: _middle([each[key] for each in answers]) for key in first}
    if isinstance(first, list):
        return [_middle([each[index] for each in answers]) for index in range(len(first))]
    return first if isinstance(first, int) else float(f"{median(answers):.6g}")
