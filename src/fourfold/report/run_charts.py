"""Pictures of a run's page: curves over steps, and a step's timeline as it ran above the same step as predicted. Inline SVG."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from fourfold.program import Program
from fourfold.program.instruction import BACKWARD_OPS, Op
from fourfold.report.comparison import Comparison
from fourfold.report.format_simulation import chosen_ranks, seconds_text
from fourfold.report.run_trace import first_begun

WIDTH, HEIGHT, LEFT, BOTTOM = 520, 180, 58, 22
BANDS = ("forward", "backward", "recompute", "wait", "other")
"""Bands of a timeline; the page's style has a colour for each."""
ROW, LANE, NAME = 20, 4, 130
THINNEST = 0.15
"""Pixels: what is shorter is drawn with what follows."""

Point = tuple[float, float]


def curve(points: Sequence[Point], marks: Sequence[Point], level: float | None, label: str, unit: str) -> str:
    """A line over steps, with marks, and a level across it; the largest 1 % of the values may lie above the frame."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if len(finite) < 2:
        return ""
    values = sorted(y for _, y in finite)
    high = max([values[min(len(values) - 1, int(0.99 * len(values)))], *(y for _, y in marks), *_known(level)])
    low = min([values[0], *(y for _, y in marks), *_known(level)])
    high = high if high > low else low + (abs(low) or 1.0)
    first, last = finite[0][0], finite[-1][0]

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - first) / (last - first) * (WIDTH - LEFT - 8)
        return across, 10 + (1 - (min(y, high) - low) / (high - low)) * (HEIGHT - BOTTOM - 10)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in _thinned(finite)))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    for value in (low, (low + high) / 2, high):
        y = place(first, value)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    parts.append(f'<polyline class="line" points="{line}"/>')
    if level is not None:
        y = place(first, level)[1]
        parts.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>')
    parts += [f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in (place(*m) for m in marks)]
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 4}">step {first:.0f}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="{HEIGHT - 4}" text-anchor="end">{last:.0f}</text>')
    return "\n".join([*parts, f"<title>{escape(label)}, {escape(unit)}</title></svg>"])


def _known(level: float | None) -> list[float]:
    return [] if level is None else [level]


def _thinned(points: Sequence[Point], most: int = 1000) -> list[Point]:
    every = -(-len(points) // most)
    return [*points[::every], points[-1]]


def timelines(found: Comparison) -> str:
    """The latest step of some pipeline ranks: as it ran, and under it as predicted, on one scale of time."""
    measured = {r.pp_rank: r.measured.timeline for r in found.ranks if r.measured.timeline is not None}
    simulated_fully = found.step is not None and found.step.is_full
    simulated = found.step.simulation.times if found.step is not None and simulated_fully else None
    ranks = [rank for rank in chosen_ranks(len(found.programs), None) if rank in measured]
    lanes: list[tuple[str, Program, Sequence[float], float]] = []
    begun = first_begun(found)
    for rank in ranks:
        timeline, program = measured[rank], found.programs[rank]
        if len(timeline.ends) == len(program.instructions):
            lanes.append((f"pp {rank} measured", program, timeline.ends, timeline.begun - begun))
        if simulated is not None:
            lanes.append(("predicted", program, simulated.ranks[rank].ends, 0.0))
    if not lanes:
        return ""
    longest = max(offset + ends[-1] for _, _, ends, offset in lanes)
    scale, height = (1060 - NAME) / longest, len(lanes) * (ROW + LANE) + 24
    parts = [f'<svg viewBox="0 0 1060 {height}" role="img" aria-label="timelines">']
    for index, (name, program, ends, offset) in enumerate(lanes):
        top = index * (ROW + LANE)
        parts.append(f'<text x="{NAME - 8}" y="{top + 14}" text-anchor="end">{name}</text>')
        parts.append(f'<rect class="lane" x="{NAME}" y="{top}" width="{1060 - NAME}" height="{ROW}"/>')
        for band, start, end, title in _bars(program, ends, THINNEST / scale):
            box = f'x="{NAME + (offset + start) * scale:.2f}" y="{top}" width="{(end - start) * scale:.2f}" height="{ROW}"'
            parts.append(f'<rect class="{band}" {box}><title>{escape(title)}</title></rect>')
    for part in range(5):
        x = NAME + (1060 - NAME) * part / 4
        anchor = "end" if part == 4 else "middle" if part else "start"
        text = seconds_text(longest * part / 4) if part else "0"
        parts.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">{text}</text>')
    return "\n".join([*parts, "</svg>"])


def _bars(program: Program, ends: Sequence[float], least: float) -> Iterator[tuple[str, float, float, str]]:
    """Band, start, end and title of each bar of a lane. A bar too short to see is drawn with the one that follows."""
    start = before = 0.0
    names: list[str] = []
    spent: dict[str, float] = {}
    last = len(program.instructions) - 1
    for index, (step, end) in enumerate(zip(program.instructions, ends, strict=True)):
        band = band_of(step.op)
        spent[band] = spent.get(band, 0.0) + end - before
        names.append(step.short)
        before = end
        if before > start and (before - start >= least or index == last):
            yield max(spent, key=spent.__getitem__), start, before, _title(names, before - start)
            start, names, spent = before, [], {}


def _title(names: Sequence[str], seconds: float) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown}: {seconds_text(seconds)}"


def band_of(op: Op) -> str:
    """Which colour an instruction has."""
    if op is Op.FORWARD:
        return "forward"
    if op in BACKWARD_OPS:
        return "backward"
    if op in (Op.RECOMPUTE, Op.REPLAY):
        return "recompute"
    return "wait" if op is Op.WAIT else "other"
