"""A rehearsed step as a screen: allocations, traffic, launches and waits of every pipeline rank."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from fourfold.rehearse.rank import RankRehearsal
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
        f"rehearsed: every class of {format_count(world_size)} ranks; each passes, and groups are called alike by their members",
        "not rehearsed: values, times, kernels themselves, and NCCL",
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
