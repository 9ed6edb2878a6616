"""The first four lines about a predicted step: does it fit, how fast it is, where its time goes, what to change first."""

from fourfold.program.offload import STREAMS
from fourfold.report.format_simulation import KINDS, per_cent, seconds_text
from fourfold.report.units import format_bytes
from fourfold.simulate.step import exposed_axes
from fourfold.simulate.summary import StepSummary

WIDTH = 72
"""Columns of a line's text, of 80."""
LEAST_SHARE = 0.03
"""Share of the step below which a cost is not worth a change."""


def verdict_lines(summary: StepSummary) -> list[str]:
    """Four lines, the same for every command that predicts a step. A step that does not fit is told what would make it fit."""
    rate = summary.tokens_per_second / summary.devices
    return [
        f"memory  {_memory(summary)}",
        f"step    {seconds_text(summary.seconds)}, MFU {per_cent(summary.mfu)}, {rate:.4g} tokens/s/device",
        f"time    {_time(summary)}",
        f"change  {_faster(summary) if summary.fits else _smaller(summary)}",
    ]


def _memory(summary: StepSummary) -> str:
    most, capacity = max(summary.step.device_bytes), summary.device.memory_bytes
    of = f"{format_bytes(most)} of {format_bytes(capacity)} ({per_cent(most / capacity)})"
    if summary.fits:
        return f"fits: {of}, {format_bytes(capacity - most)} left"
    if most > capacity:
        return f"DOES NOT FIT: {of}, {format_bytes(most - capacity)} too much"
    return f"DOES NOT FIT: host lacks {format_bytes(summary.host_lacks)}; device {of}"


def _time(summary: StepSummary) -> str:
    """Three shares that sum to the step: means over pipeline ranks; as many axes as the line has room for."""
    exposed = [(axes, share) for axes, share in summary.exposed_shares.items() if share >= 0.0005]
    total, bubble = sum(summary.exposed_shares.values()), summary.bubble_fraction
    line = f"compute {per_cent(1 - total - bubble)}, exposed comm {per_cent(total)}, bubble {per_cent(bubble)}"
    by_axes = f" ({exposed[0][0]} {100 * exposed[0][1]:.1f})" if exposed else ""
    for number in range(1, len(exposed) + 1):
        rest = sum(share for _, share in exposed[number:])
        shown = [
            f"{axes} {100 * share:.1f}" for axes, share in [*exposed[:number], *([("other", rest)] if rest else [])]
        ]
        if len(line) + len(longer := f" ({', '.join(shown)})") > WIDTH:
            break
        by_axes = longer
    return line.replace(", bubble", f"{by_axes}, bubble")


def _faster(summary: StepSummary) -> str:
    """Names the largest cost beside the arithmetic, and what usually shortens it."""
    layout = summary.step.simulation.spec.layout
    costs = {kind: s / summary.seconds for kind, s in summary.path.items() if kind not in ("matmuls", "attention")}
    costs["bubble"] = max(
        summary.bubble_fraction, costs.pop("transfers between stages", 0.0), costs.pop("waiting", 0.0)
    )
    helps = {
        "bubble": "more microbatches, more virtual stages or less pp",
        "memory-bound kernels": "fused kernels, or more tp",
        "recomputation": "less layout.recompute where memory allows",
        "host": "larger layout.microbatch_sequences",
        "compute/communication contention": "less tp, ep or cp",
        "optimizer": "layout.zero=1" if layout.zero == 0 else "more dp_shard",
    }
    for kind, share in sorted(costs.items(), key=lambda item: -item[1]):
        axes, what = exposed_axes(kind), helps.get(kind)
        if share < LEAST_SHARE:
            break
        if kind.startswith("exposed "):
            what = f"less {(axes or '').partition('+')[0]}, or larger microbatches"
        elif axes is not None and kind.endswith("reduce"):
            once = layout.zero >= 2 and layout.num_microbatches > 1
            what = "layout.zero=1 reduces once a step" if once else "more microbatches a step"
        elif axes in STREAMS.values():
            what = "less layout.offload where memory allows"
        elif axes is not None:
            what = "larger microbatches" + (" or layout.zero=1" if layout.zero == 3 else "")
        if what is not None:
            return f"{kind} {per_cent(share)}: {what}"
    return "nothing stands out: matmuls and attention limit the step"


def _smaller(summary: StepSummary) -> str:
    """Names the largest kind of buffer, or what the host has too much of, and what would make it smaller."""
    layout, held = summary.step.simulation.spec.layout, summary.step.device_bytes
    if max(held) <= summary.device.memory_bytes:
        fewer = "layout.offload_optimizer=false" if layout.offload_optimizer else "layout.offload of fewer blocks"
        return f"{format_bytes(summary.step.host_bytes)} on the host: {fewer}, more dp_shard"
    fullest = max(range(len(held)), key=held.__getitem__)
    kind, size = next(iter(summary.step.simulation.peaks[fullest].by_kind().items()))
    if kind in ("saved", "hidden", "deferred", "workspace", "dhidden"):
        stronger = {"none": "layout.recompute=selective", "selective": "layout.recompute=full"}
        what = f"{stronger.get(layout.recompute[len(layout.recompute) // 2], 'more pp')} or more tp"
    elif kind == "units":
        what = "layout.zero=2, more tp or pp"
    else:
        least = {"optimizer": 1, "master": 1, "grad": 2}.get(kind, 3)
        sharded = f"layout.zero={least}" if layout.zero < least else "more dp_shard"
        what = f"{sharded}, more tp or pp"
    return f"{KINDS.get(kind, kind)} {format_bytes(size)} on pp {fullest}: {what}"
