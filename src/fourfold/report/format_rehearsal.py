"""A rehearsed step as a screen: allocations, traffic, launches and waits of every pipeline rank."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from fourfold.hardware import Cluster
from fourfold.launch.host_memory import HostNeed
from fourfold.rehearse.rank import RankRehearsal
from fourfold.rehearse.small import AXES, RESUMED_STEPS
from fourfold.rehearse.training import TrainingRehearsal
from fourfold.report.units import format_bytes, format_count, table

_HEAD = (
    "pipeline rank",
    "instructions",
    "launches",
    "collectives",
    "waits",
    "before the step",
    "peak",
    "predicted",
    "sends",
)


def rehearsal_lines(results: Sequence[RankRehearsal], world_size: int, graphs: bool = False) -> list[str]:
    """A row for each pipeline rank, or for consecutive ones that are alike, then its words and the waits of the host. `graphs`:
    whether the step passed as a CUDA graph too."""
    alike = [(row, [each.pp_rank for each in group]) for row, group in groupby(results, _cells)]
    rows = [[_span([first.pp_rank for first in results] if len(alike) == 1 else ranks), *row] for row, ranks in alike]
    busiest = max(results, key=lambda result: sum(result.sent_bytes.values()))
    sent = ", ".join(f"{axes} {format_bytes(size)}" for axes, size in busiest.sent_bytes.items() if size)
    return [
        *table(_HEAD, rows),
        "",
        "launches     operations that the host gives the device; some are several kernels, a collective is none",
        f"collectives  calls of communicators, of which a rank has up to {max(r.communicators for r in results)}",
        "waits        times that the host waits for the device:",
        *_wait_lines(results),
        f"sends        of pipeline rank {busiest.pp_rank}: {sent or 'nothing'}",
        *(
            ["graph        two captures of the step are the same operations: the host replays it in one call"]
            if graphs
            else []
        ),
        "",
        f"rehearsed: a step of every class of {format_count(world_size)} ranks; each passes, and groups are called alike",
    ]


def host_memory_line(need: HostNeed, cluster: Cluster | None) -> str:
    """The memory of its host that a rank pins, and that a machine of the cluster has for all of its ranks."""
    parts = {
        "activations": need.activations,
        "states": need.states,
        "a copy for saves beside training": need.save_copy,
        "copies in memory": need.memory_copies,
    }
    each = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    text = (
        f"host memory  {format_bytes(need.bytes)} pinned for each rank: {each}"
        if each
        else "host memory  nothing is pinned"
    )
    if cluster is None or cluster.host_memory_bytes_per_device is None:
        return text
    ranks = cluster.host_devices
    has = format_bytes(ranks * cluster.host_memory_bytes_per_device)
    return f"{text}; {format_bytes(ranks * need.bytes)} of {has} of a machine of {cluster.key}"


def training_lines(rehearsal: TrainingRehearsal) -> list[str]:
    """Lines on what a training in small went through, and on what no rehearsal does."""
    small, events = rehearsal.small, rehearsal.events
    degrees = {axis: getattr(small.resolved.layout, axis) for axis in AXES}
    axes = ", ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1)
    ranks = f"{small.ranks} rank{'s' * (small.ranks > 1)}{f' ({axes})' if axes else ''}"
    went = [
        "store, groups, trials of kernels",
        f"{RESUMED_STEPS} steps",
        f"{events['save']} saves",
        f"{events['evaluate']} evaluations",
        "a second start from a save",
        *(["a sample"] if events["sample"] else []),
        "the end",
    ]
    return [
        f"rehearsed: all of a training in small, {ranks} in {rehearsal.seconds:.0f} s: {', '.join(went)}",
        f"in small without: {', '.join(small.left_out)}",
        "not rehearsed: values and times at full size, kernels themselves, and NCCL",
    ]


def _cells(result: RankRehearsal) -> tuple[str, ...]:
    counts = (result.instructions, result.launches, result.num_calls, len(result.waits))
    sizes = (result.resident_bytes, result.peak_bytes, result.predicted_peak_bytes, sum(result.sent_bytes.values()))
    return (*map(str, counts), *map(format_bytes, sizes))


def _span(ranks: Sequence[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"


def _wait_lines(results: Sequence[RankRehearsal]) -> list[str]:
    counts = Counter[str]()
    for result in results:
        for what, count in Counter(f"{wait.what} ({wait.line})" for wait in result.waits).items():
            counts[what] = max(counts[what], count)
    return [f"             {count} x {what}" for what, count in counts.items()]
