"""A predicted step as text: rates, memory, where seconds went, communication, what limits the step, and runs that are like it."""

from collections import Counter
from collections.abc import Sequence

from fourfold.config.optimizers import AdamWSection
from fourfold.cost.memory import device_bytes
from fourfold.cost.prices import Prices
from fourfold.cost.software import SoftwareProfile
from fourfold.evidence import PublishedRun, nearest_runs
from fourfold.layout import FlatLayout
from fourfold.layout.mesh import axes_name
from fourfold.model.spec import Segment
from fourfold.program.capabilities import BUFFERS, unit_bytes
from fourfold.program.communicators import num_communicators
from fourfold.program.muon.owners import placement
from fourfold.program.spec import StepSpec
from fourfold.report.screen import NARROW, columns
from fourfold.report.units import (
    flops_figure,
    format_bytes,
    format_count,
    format_figure,
    per_cent,
    seconds_text,
    sparkline,
    spelled_out,
    table,
)
from fourfold.simulate.checks import CheckPrice
from fourfold.simulate.memory import memory_over_time
from fourfold.simulate.step import mean_seconds
from fourfold.simulate.summary import AxesTraffic, StepSummary

SHOWN_RANKS = 6
SHOWN_REASONS = 6
LAYER_WIDTH = 24
"""Columns of the numbers of layers."""
FEW_WIDTH = 14
"""Columns of the names of groups that are shown together."""
LEAST_IMBALANCE = 0.0005
"""Share of a step below which imbalance is not worth a line."""

KINDS = {kind: row.label or kind for kind, row in BUFFERS.items()}
KINDS |= {"units": "full units beside the shards", "workspace": "workspace"}
"""Kinds of buffers as a person reads them."""


def format_segments(segments: Sequence[Segment]) -> str:
    """`embedding, 4 blocks`: the segments of a pipeline rank."""
    kinds = Counter(segment.kind for segment in segments)
    return ", ".join(kind if number == 1 else f"{number} {kind}s" for kind, number in kinds.items())


def step_lines(summary: StepSummary) -> list[str]:
    """Time, rates and utilisation with their formulas."""
    simulation = summary.step.simulation
    peak, reached = (each / 1e12 for each in (summary.peak_flops_per_second, summary.model_flops_per_second))
    simulated, count = simulation.spec.layout.num_microbatches, summary.num_microbatches
    lines = [
        f"batch      {format_count(summary.tokens)} tokens, {count} microbatch{'es' if count != 1 else ''} a rank: "
        f"{format_count(summary.tokens_per_second)} tokens/s",
        f"MFU        {per_cent(summary.mfu)} = {flops_figure(summary.flops_per_token)}/token x tokens/s / "
        f"({summary.devices} devices x {format_figure(peak)} TFLOP/s): {format_figure(reached)} TFLOP/s/device",
        f"HFU        {per_cent(summary.hfu)} = {flops_figure(summary.executed_flops)} executed, recomputation included / "
        f"(step x devices x peak)",
        f"bubble     {per_cent(summary.bubble_fraction)} of the step to fill and drain, mean over pipeline ranks",
    ]
    if summary.imbalance_fraction >= LEAST_IMBALANCE:
        busiest = summary.busiest_rank
        has = format_segments(simulation.views[busiest].segments)
        uneven = per_cent(summary.imbalance_fraction)
        lines.append(f"imbalance  {uneven} of the step waits for pp {busiest}, which has more to compute: {has}")
    if summary.host_bound:
        most = ", ".join(f"{name} {per_cent(share)}" for name, share in list(summary.host_bound.items())[:3])
        total = per_cent(sum(summary.host_bound.values()))
        lines.append(f"host-bound {total} of the step, in which devices wait for their hosts to issue: {most}")
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
        lines.append(f"  {per_cent(seconds / step_seconds):>6}  {spelled_out(kind)}, {seconds_text(seconds)}")
    return lines


def chosen_ranks(count: int, pp_rank: int | None, width: int = NARROW) -> list[int]:
    """The pipeline ranks that a table shows: the one asked for, or the first, the last and some between."""
    if pp_rank is not None:
        return [pp_rank]
    shown = SHOWN_RANKS if width >= NARROW else SHOWN_RANKS // 2
    if count <= shown:
        return list(range(count))
    chosen = {round(i * (count - 1) / (shown - 1)) for i in range(shown)}
    return sorted(chosen | {1} if width >= NARROW else chosen)


def spent_lines(summary: StepSummary, ranks: Sequence[int]) -> list[str]:
    """Seconds by kind: columns are pipeline ranks and the mean of all."""
    spent = summary.spent
    mean = mean_seconds(spent)
    kinds = sorted((kind for kind in mean if mean[kind] > 5e-5 * summary.seconds), key=lambda kind: -mean[kind])
    scale, unit = (1.0, "s") if summary.seconds >= 1 else (1e3, "ms")
    head = [f"pp {rank}" for rank in ranks]
    several_ranks = len(spent) > 1
    columns = [*head, *(["mean"] if several_ranks else []), "share"]
    rows = [
        [
            spelled_out(kind),
            *(f"{spent[rank].get(kind, 0.0) * scale:.3f}" for rank in ranks),
            *([f"{mean[kind] * scale:.3f}"] if several_ranks else []),
            per_cent(mean[kind] / summary.seconds),
        ]
        for kind in kinds
    ]
    return table([f"where the {'seconds' if unit == 's' else 'milliseconds'} go", *columns], rows)


def layer_lines(summary: StepSummary) -> list[str]:
    """A row for each kind of layer; none where all are alike."""
    if len(summary.layers) < 2:
        return []
    rows = [
        [
            f"{len(each.numbers)} x {each.words}"
            + (f", recompute {each.recompute}" if each.recompute != "none" else ""),
            seconds_text(each.forward_seconds),
            seconds_text(each.backward_seconds),
            format_bytes(each.kept_bytes),
            _cut(each.ranges, LAYER_WIDTH),
        ]
        for each in summary.layers
    ]
    return table(["layers, a microbatch", "forward", "backward", "kept", "which"], rows)


def communication_lines(summary: StepSummary) -> list[str]:
    """Bytes, busy and exposed seconds by axes; groups that carry next to nothing go together."""
    small = 1e-4 * summary.seconds
    shown = [each for each in summary.communication if each.busy_seconds >= small]
    few = [each for each in summary.communication if each.busy_seconds < small]
    if few:
        sums = [sum(getattr(each, name) for each in few) for name in ("sent_bytes", "busy_seconds", "exposed_seconds")]
        shown.append(AxesTraffic(_together(few), (), *sums))
    rows = [
        [
            spelled_out(each.axes),
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
    return table(["communication", "over", "sent", "busy", "exposed", "of the step"], rows, left=(0, 1))


def _together(few: Sequence[AxesTraffic]) -> str:
    """The name of groups in one row: their own where these are few."""
    names = ", ".join(each.axes for each in few)
    return names if len(names) <= FEW_WIDTH else f"{len(few)} more groups"


def memory_lines(summary: StepSummary, ranks: Sequence[int]) -> list[str]:
    """The peak of each rank's devices, its instruction and its largest buffers."""
    simulation, capacity = summary.step.simulation, summary.device.memory_bytes
    rows = []
    for rank in ranks:
        peak, held = simulation.peaks[rank], summary.step.device_bytes[rank]
        sizes = list(peak.by_kind().items())[: 3 if columns() >= NARROW else 2]
        kinds = [f"{KINDS.get(kind, kind)} {format_bytes(size)}" for kind, size in sizes]
        step = simulation.programs[rank].instructions[peak.index]
        rows.append([f"pp {rank}", format_bytes(held), per_cent(held / capacity), step.short, ", ".join(kinds)])
    overhead = format_overhead(simulation.prices.software, simulation.spec)
    beside = [f"overhead   {overhead} (--context-bytes, --fragmentation), included in peak memory"] if overhead else []
    if summary.step.host_bytes:
        copies = f"copied at {summary.device.host_link_bytes_per_second / 1e9:.3g} GB/s in either direction"
        share = simulation.prices.cluster.host_memory_bytes_per_device
        of = f" of {format_bytes(share)}" if share is not None else " of its memory"
        beside.append(f"host       {format_bytes(summary.step.host_bytes)}{of} for each device at most, {copies}")
    heads = ("device", "peak memory", "share", "at", "largest buffers")
    return [*table(heads, rows, left=(0, 3, 4)), *beside]


def format_overhead(software: SoftwareProfile, spec: StepSpec) -> str:
    """Memory of a device beside the program's buffers; empty where none is counted."""
    counts = sorted({num_communicators(spec, rank) for rank in range(spec.layout.pp)})
    beside = "context and communication buffers"
    if software.communicator_bytes and counts[-1]:
        number = (
            "1 communicator" if counts[-1] == 1 else f"{'-'.join(map(str, counts[:1] + counts[1:][-1:]))} communicators"
        )
        beside = f"context, {number} of {format_bytes(int(software.communicator_bytes))}"
    context = [f"{format_bytes(int(software.context_bytes))} {beside}"] if software.context_bytes else []
    fragmentation = [f"{per_cent(software.fragmentation)} allocator fragmentation"] if software.fragmentation else []
    return ", ".join([*context, *fragmentation])


def format_software(prices: Prices) -> str:
    """The software profile, and the format of its matmuls where that is not the compute format."""
    scales = " with a scale a block" if prices.software.fine_scales else ""
    gemm_dtype = f", matmuls in {prices.matmul_format}{scales}" if prices.matmul_format != prices.dtype else ""
    return f"{prices.software.name}{gemm_dtype}"


def kernel_lines(prices: Prices) -> list[str]:
    """The kernels that software usually runs, or was said to, of those that the run has; nothing for fourfold, whose program has
    them."""
    layout, software = prices.layout, prices.software
    has = {
        "softmax": not software.fused_attention,
        "tp_collectives": layout.tp > 1 and layout.sequence_parallel,
        "dispatcher": layout.ep > 1,
        "ep_collectives": layout.ep > 1,
        "experts": layout.ep > 1 and software.fine_scales,
        "launches": prices.chosen_kernels.get("launches") == "graph",
    }
    shown = [f"{key.replace('_', ' ')} {word}" for key, word in prices.chosen_kernels.items() if has.get(key, True)]
    return [f"kernels: {', '.join(shown)}"] if shown else []


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
        beside = device_bytes(peak.bytes, simulation.prices.software, simulation.spec, rank) - peak.bytes
        if beside:
            lines.append(f"    {'context and fragmentation':<30} {format_bytes(beside):>9}")
    return lines


def check_lines(checks: Sequence[CheckPrice]) -> list[str]:
    """The prices of checks for silent corruption, a line each."""
    lines: list[str] = []
    for check in checks:
        often = f" every {check.every_steps} steps" if check.every_steps > 1 else ""
        more = f", {format_bytes(check.memory_bytes)} more at the peak" if check.memory_bytes else ""
        share = "below 0.01 %" if check.share < 1e-4 else f"{100 * check.share:.2g} %"
        lines.append(f"{'' if lines else 'checks':<11}{check.name}{often}: {share} of the time{more}")
    return lines


MODEL_WIDTH, SOURCE_WIDTH, NARROW_WIDTH = 26, 60, 16


def nearest_lines(summary: StepSummary) -> list[str]:
    """A table of the nearest published runs: their step times as measured and as predicted. On a narrow screen without layout,
    sequence length and software."""
    head = ["nearest measured runs", "devices", "layout", "sequence", "software", "measured", "predicted", "source"]
    simulation = summary.step.simulation
    rows = [_row(run) for run in nearest_runs(simulation.spec, simulation.prices)]
    if columns() >= NARROW:
        return table(head, rows, left=(0, 1, 2, 4, 7))
    kept = [index for index, name in enumerate(head) if name not in ("layout", "sequence", "software")]
    narrow = [[_cut(row[index], NARROW_WIDTH) for index in kept] for row in rows]
    return table(["nearest runs", *(head[index] for index in kept[1:])], narrow, left=(0, 1, 4))


def _row(run: PublishedRun) -> list[str]:
    shape = run.shape
    error = run.predicted_step_seconds / run.step_seconds - 1
    return [
        _cut(run.model, MODEL_WIDTH),
        f"{shape.devices:,} {shape.device}",
        run.layout,
        f"{shape.sequence_length:,}",
        shape.software,
        seconds_text(run.step_seconds),
        f"{seconds_text(run.predicted_step_seconds)} ({100 * error:+.0f} %)",
        _cut(run.source, SOURCE_WIDTH),
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def matrix_lines(summary: StepSummary) -> list[str]:
    """Nothing for an elementwise optimizer."""
    simulation = summary.step.simulation
    spec, prices = simulation.spec, simulation.prices
    if not spec.optimizer.orthogonalizes:
        return []
    views = simulation.views
    moved = AdamWSection.spec.update_bytes(spec.compute, spec.master, spec.gradients)
    adamw = sum(prices.memory(flat.shard_numel * moved) for view in views for flat in view.flats.values()) / len(views)
    own = mean_seconds(summary.spent).get("optimizer", 0.0)
    lines = [f"optimizer  {seconds_text(own)} a rank; AdamW's update would take {seconds_text(adamw)}"]
    known = set()
    for flat in (flat for view in views for flat in view.flats.values() if placement(spec, flat).work.items):
        text = _placed(spec, flat)
        if text not in known:
            known.add(text)
            lines.append(f"           {flat.unit}: {text}")
    return lines


def _placed(spec: StepSpec, flat: FlatLayout) -> str:
    plan = placement(spec, flat)
    spread = f"{plan.spread_work.flops / 1e9:.4g} GFLOP"
    if not plan.owners:
        why = "owner ranks save less than sending results costs"
        if spec.optimizer.placement == "shard":
            why = "optimizer.placement = shard"
        elif not spec.layout.active(("dp_replicate", "dp_shard", "cp", "tp")):
            why = "there is one rank"
        return f"every rank orthogonalizes what it has parts of, {spread} on the busiest: {why}"
    why = (
        "saves more than sending results costs" if spec.optimizer.placement == "auto" else "optimizer.placement = owner"
    )
    size = format_bytes(unit_bytes(spec, "homes", flat))
    return (
        f"owner ranks over {axes_name(plan.owners)}, {plan.work.flops / 1e9:.4g} GFLOP on the busiest in place of {spread}, "
        f"{size} of results gathered: {why}"
    )
