"""A predicted step as text: rates, memory, where the seconds went, communication, and what limits the step."""

from collections.abc import Sequence

from fourfold.cost.memory import device_bytes
from fourfold.cost.prices import Prices
from fourfold.cost.software import SoftwareProfile
from fourfold.report.format_interval import interval_text
from fourfold.report.units import format_bytes, format_count, sparkline
from fourfold.simulate.memory import memory_over_time
from fourfold.simulate.step import IDLE
from fourfold.simulate.summary import AxesTraffic, StepSummary

SHOWN_RANKS = 6
SHOWN_REASONS = 6

KINDS = {
    "params": "parameters",
    "shard": "parameters (shards)",
    "master": "master weights",
    "optimizer": "optimizer states",
    "grad": "gradients",
    "grad_shard": "gradients (shards)",
    "hidden": "hidden states",
    "dhidden": "gradients of hidden states",
    "saved": "activations",
    "deferred": "tensors of deferred wgrads",
    "reduce": "staging buffers of reductions",
    "units": "full units beside the shards",
    "batch": "tokens",
    "rope": "rotary tables",
    "router": "routers",
    "workspace": "workspace",
}
"""Kinds of buffers as a person reads them."""


def seconds_text(seconds: float) -> str:
    """`0.0123` -> `12.3 ms`, `75` -> `75.0 s`."""
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"
    if seconds >= 0.9995e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def per_cent(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:.1f} %"  # 0 without a sign


def step_lines(summary: StepSummary) -> list[str]:
    """Time, rates and utilisation with their formulas."""
    simulation = summary.step.simulation
    peak = summary.peak_flops_per_second
    simulated = simulation.spec.layout.num_microbatches
    within = interval_text("time", summary, seconds_text)
    lines = [
        f"step       {seconds_text(summary.seconds)}{within} for {format_count(summary.tokens)} tokens "
        f"({summary.num_microbatches} microbatches a rank)",
        f"rate       {format_count(summary.tokens_per_second)} tokens/s, "
        f"{summary.tokens_per_second / summary.devices:.4g} tokens/s/device",
        f"MFU        {per_cent(summary.mfu)} = {summary.flops_per_token:.4g} FLOPs/token x tokens/s / ({summary.devices} devices "
        f"x {peak / 1e12:.4g} TFLOP/s): {summary.model_flops_per_second / 1e12:.4g} TFLOP/s/device",
        f"HFU        {per_cent(summary.hfu)} = {summary.executed_flops:.4g} FLOPs executed, recomputation included / "
        f"(step x devices x peak)",
        f"bubble     {per_cent(summary.bubble_fraction)} of the step, mean over pipeline ranks",
    ]
    if not summary.step.is_full:
        lines.append(
            f"           simulated with {simulated} and with fewer microbatches, and extrapolated linearly to "
            f"{summary.num_microbatches}"
        )
    return lines


def late_lines(summary: StepSummary) -> list[str]:
    """The critical path: what the step is limited by."""
    step_seconds = summary.seconds
    parts = [(kind, seconds) for kind, seconds in summary.path.items() if seconds >= 0.005 * step_seconds]
    crossings = summary.path_crossings
    over = f", which changes pipeline ranks {crossings} times" if crossings else ""
    lines = [f"the step is limited by its critical path{over}:"]
    for kind, seconds in parts[:SHOWN_REASONS]:
        lines.append(f"  {per_cent(seconds / step_seconds):>6}  {kind}, {seconds_text(seconds)}")
    hint = _hint(summary)
    return [*lines, *([hint] if hint else [])]


def _hint(summary: StepSummary) -> str | None:
    """Names the largest cost beside the arithmetic, and what usually shortens it."""
    layout = summary.step.simulation.spec.layout
    arithmetic = ("matmuls", "attention")
    costs = {kind: s for kind, s in summary.path.items() if kind not in arithmetic}
    idle = sum(rank.get(IDLE, 0.0) for rank in summary.spent) / len(summary.spent)
    kind, seconds = max(costs.items(), key=lambda item: item[1], default=("", 0.0))
    if seconds < 0.1 * summary.seconds and idle > max(seconds, 0.05 * summary.seconds):
        return (
            f"stages wait for each other {seconds_text(idle)} per device; what would help first: more microbatches a step, more "
            f"stages a rank (layout.virtual_stages), stages of more equal work, or less pp"
        )
    if seconds < 0.03 * summary.seconds:
        return None
    helps = {
        "memory-bound kernels": "fused kernels, or more tp with sequence parallelism",
        "recomputation": "selective or no recomputation where memory allows (layout.recompute)",
        "transfers between stages": "stages whose neighbours share a faster link, fewer stages a rank, or smaller microbatches",
        "host": "larger microbatches, or fewer and larger kernels",
        "optimizer": "sharding it over more ranks (layout.zero = 1)",
    }
    what = helps.get(kind)
    if kind.startswith("exposed "):
        what = "a smaller or nearer group (less tp, cp or ep; inside a node), or larger microbatches"
    elif kind.endswith(" reduce"):
        once = layout.zero >= 2 and layout.num_microbatches > 1
        what = "ZeRO-1, which reduces once a step, not once a microbatch" if once else "more microbatches a step"
    elif kind.endswith(" gather"):
        what = "more computation between gathers: larger microbatches, ZeRO-1 or 2, or a deeper layout.prefetch"
    take = "take" if kind.endswith("s") else "takes"
    return f"{kind} {take} {seconds_text(seconds)}; what would help first: {what}" if what else None


def chosen_ranks(count: int, pp_rank: int | None) -> list[int]:
    """The pipeline ranks that a table shows: the one asked for, or the first, the last and some between."""
    if pp_rank is not None:
        return [pp_rank]
    if count <= SHOWN_RANKS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (SHOWN_RANKS - 1)) for i in range(SHOWN_RANKS)} | {1})


def spent_lines(summary: StepSummary, ranks: Sequence[int]) -> list[str]:
    """Seconds by kind: columns are pipeline ranks and the mean of all."""
    spent = summary.spent
    mean: dict[str, float] = {}
    for rank in spent:
        for kind, seconds in rank.items():
            mean[kind] = mean.get(kind, 0.0) + seconds / len(spent)
    kinds = sorted((kind for kind in mean if mean[kind] > 5e-5 * summary.seconds), key=lambda kind: -mean[kind])
    scale, unit = (1.0, "s") if summary.seconds >= 1 else (1e3, "ms")
    head = [f"pp {rank}" for rank in ranks]
    several_ranks = len(spent) > 1
    columns = [*head, *(["mean"] if several_ranks else []), "share"]
    rows = [
        [
            kind,
            *(f"{spent[rank].get(kind, 0.0) * scale:.3f}" for rank in ranks),
            *([f"{mean[kind] * scale:.3f}"] if several_ranks else []),
            per_cent(mean[kind] / summary.seconds),
        ]
        for kind in kinds
    ]
    return table([f"where the {'seconds' if unit == 's' else 'milliseconds'} go", *columns], rows)


def communication_lines(summary: StepSummary) -> list[str]:
    """Bytes, busy and exposed seconds by axes; groups that carry next to nothing go together."""
    small = 1e-4 * summary.seconds
    shown = [each for each in summary.communication if each.busy_seconds >= small]
    few = [each for each in summary.communication if each.busy_seconds < small]
    if few:
        sums = [sum(getattr(each, name) for each in few) for name in ("sent_bytes", "busy_seconds", "exposed_seconds")]
        shown.append(AxesTraffic("others", (), *sums))
    rows = [
        [
            each.axes,
            ", ".join(each.levels),
            format_bytes(each.sent_bytes),
            seconds_text(each.busy_seconds),
            seconds_text(each.exposed_seconds),
            per_cent(each.exposed_seconds / summary.seconds),
        ]
        for each in shown
    ]
    if not rows:
        return []
    return table(["communication of a device", "over", "sent", "busy", "exposed", "of the step"], rows, left=(0, 1))


def memory_lines(summary: StepSummary, ranks: Sequence[int]) -> list[str]:
    """The peak of each rank's devices, its instruction and its largest buffers."""
    simulation, capacity = summary.step.simulation, summary.device.memory_bytes
    rows = []
    for rank in ranks:
        peak, held = simulation.peaks[rank], summary.step.device_bytes[rank]
        kinds = [f"{KINDS.get(kind, kind)} {format_bytes(size)}" for kind, size in list(peak.by_kind().items())[:3]]
        step = simulation.programs[rank].instructions[peak.index]
        share = per_cent(held / capacity) + ("" if held <= capacity else " TOO MUCH")
        rows.append([f"pp {rank}", format_bytes(held), share, step.short, ", ".join(kinds)])
    most = max(summary.step.device_bytes)
    name = summary.device.name
    within = interval_text("memory", summary, format_bytes)
    verdict = f"memory     {format_bytes(most)}{within} at most of {format_bytes(capacity)} ({name}): " + (
        f"fits, {format_bytes(capacity - most)} left"
        if summary.fits
        else f"DOES NOT FIT, {format_bytes(most - capacity)} too much"
    )
    hint = [] if summary.fits else [_too_much(summary)]
    overhead = format_overhead(simulation.prices.software)
    beside = [f"overhead   {overhead} (--context-bytes, --fragmentation), included in peak memory"] if overhead else []
    return [
        verdict,
        *hint,
        *beside,
        *table(["device of", "peak memory", "of capacity", "reached at", "largest buffers"], rows, left=(0, 3, 4)),
    ]


def format_overhead(software: SoftwareProfile) -> str:
    """Memory of a device beside the program's buffers; empty where none is counted."""
    context = (
        [f"{format_bytes(int(software.context_bytes))} context and communication buffers"]
        if software.context_bytes
        else []
    )
    fragmentation = [f"{per_cent(software.fragmentation)} allocator fragmentation"] if software.fragmentation else []
    return ", ".join([*context, *fragmentation])


def format_software(prices: Prices) -> str:
    """The software profile, and the format of its matmuls where that is not the compute format."""
    scales = " with a scale a block" if prices.software.fine_scales else ""
    gemm_dtype = f", matmuls in {prices.gemm_dtype}{scales}" if prices.gemm_dtype != prices.dtype else ""
    return f"{prices.software.name}{gemm_dtype}"


def _too_much(summary: StepSummary) -> str:
    """Names the largest kind of buffer where memory does not suffice, and what would make it smaller."""
    layout = summary.step.simulation.spec.layout
    held = summary.step.device_bytes
    fullest = max(range(len(held)), key=held.__getitem__)
    kind, size = next(iter(summary.step.simulation.peaks[fullest].by_kind().items()))
    if kind in ("saved", "hidden", "deferred", "workspace", "dhidden"):
        stronger = {"none": "layout.recompute=selective or full", "selective": "layout.recompute=full"}
        first = stronger.get(layout.recompute[len(layout.recompute) // 2], "smaller microbatches")
        what = f"{first}, more tp with sequence parallelism, more cp, smaller microbatches"
    elif kind == "units":
        what = "layout.zero=2, more tp or pp"
    else:
        least = {"optimizer": 1, "master": 1, "grad": 2}.get(kind, 3)
        sharded = f"layout.zero={least} with dp_shard" if layout.zero < least else "more dp_shard"
        what = f"{sharded}, more tp or pp"
    return (
        f"           {KINDS.get(kind, kind)} take {format_bytes(size)} of pp {fullest}; what would shrink them: {what}"
    )


def memory_curve_lines(summary: StepSummary, ranks: Sequence[int], width: int = 60) -> list[str]:
    """Memory over the simulated step, and all buffers of the peak."""
    simulation = summary.step.simulation
    lines = []
    for rank in ranks:
        curve = memory_over_time(simulation, rank, width)
        low, high = min(curve.bytes), max(curve.bytes)
        lines.append(
            f"pp {rank}  {sparkline([float(b) for b in curve.bytes], width)}  {format_bytes(low)} to {format_bytes(high)}"
        )
        peak = simulation.peaks[rank]
        for kind, size in peak.by_kind().items():
            if size < 0.001 * peak.bytes:
                continue
            lines.append(f"    {KINDS.get(kind, kind):<30} {format_bytes(size):>9}  {per_cent(size / peak.bytes):>6}")
        beside = device_bytes(peak.bytes, simulation.prices.software) - peak.bytes
        if beside:
            lines.append(f"    {'context and fragmentation':<30} {format_bytes(beside):>9}")
    return lines


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    """Columns in line: those in `left` begin together, the others end together."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(
            f"{cell:<{w}}" if i in left else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
