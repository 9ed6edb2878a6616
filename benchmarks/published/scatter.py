"""Predicted against measured as scatter plots: SVG, both axes logarithmic, one point a row."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from pathlib import Path

from fourfold.config import UserError
from fourfold.report.palette import AXES, INK, OPERATIONS, SOFT, SURFACE
from outcome import RowOutcome

_SIZE, _MARGIN = 420, 56
COLOURS = (*(colour.light for table in (AXES, OPERATIONS) for colour in table.values()), SOFT.light)
Place = Callable[[float], float]


@dataclass(frozen=True)
class Scatter:
    """`pairs`: (measured, predicted, source)."""

    title: str
    unit: str
    pairs: tuple[tuple[float, float, str], ...]


def write_scatters(rows: Sequence[RowOutcome], folder: Path, by_file: bool = True) -> list[Path]:
    """Step time and memory of all rows, and step time by file; the paths that were written. Raises `UserError`."""
    drawings = {
        "step-time.svg": _scatter("Step time, all rows", "s", rows, memory=False),
        "memory.svg": _scatter("Memory of a device, all rows", "GB", rows, memory=True),
    }
    for file in dict.fromkeys(row.file for row in rows) if by_file else ():
        mine = [row for row in rows if row.file == file]
        drawings[f"step-time-{_plain(file)}.svg"] = _scatter(f"Step time, {file}", "s", mine, memory=False)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, drawing in drawings.items():
            if drawing.pairs:
                (folder / name).write_text(scatter_svg(drawing), encoding="utf-8")
                written.append(folder / name)
    except OSError as error:
        raise UserError(f"--plots {folder}: cannot be written: {error.strerror}; what works: --plots plots") from None
    return written


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:80]


def _scatter(title: str, unit: str, rows: Sequence[RowOutcome], memory: bool) -> Scatter:
    pairs = []
    for row in rows:
        if memory:
            measured, predicted, scale = row.measured_memory_bytes, row.predicted_memory_bytes, 1e9
        else:
            measured, predicted, scale = row.measured_step_seconds, row.predicted_step_seconds, 1.0
        if measured and predicted and not row.failed and (memory or row.time_counts):
            pairs.append((measured / scale, predicted / scale, row.file))
    return Scatter(title, unit, tuple(pairs))


def scatter_svg(drawing: Scatter) -> str:
    """The diagonal is a prediction without error; the dashed lines are 20 % off. Where there are more sources than colours, those
    with the fewest rows share one."""
    values = [value for pair in drawing.pairs for value in pair[:2]]
    low, high = floor(log10(min(values)) * 4) / 4, ceil(log10(max(values)) * 4) / 4
    high = max(high, low + 0.25)

    def place(value: float) -> float:
        return _SIZE * (log10(value) - low) / (high - low)

    counts = Counter(pair[2] for pair in drawing.pairs).most_common()
    own = len(counts) if len(counts) <= len(COLOURS) else len(COLOURS) - 1
    colours = dict(zip((source for source, _ in counts[:own]), COLOURS, strict=False))
    legend = [*colours.items(), *([(f"{len(counts) - own} other sources", COLOURS[-1])] if len(counts) > own else [])]
    width, height = _SIZE + 2 * _MARGIN + 190, _SIZE + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="{INK.light}">',
        f'<rect width="{width}" height="{height}" fill="{SURFACE.light}"/>',
        f'<text x="{_MARGIN}" y="24" font-size="14">{escape(drawing.title)}</text>',
        f'<g transform="translate({_MARGIN} {_MARGIN})">',
        f'<rect width="{_SIZE}" height="{_SIZE}" fill="none" stroke="{SOFT.light}"/>',
    ]
    for factor, dash in ((1.0, ""), (1.2, ' stroke-dasharray="4 4"'), (1 / 1.2, ' stroke-dasharray="4 4"')):
        parts.append(_line(factor, place, low, high, dash))
    parts += _ticks(low, high, place)
    for measured, predicted, source in drawing.pairs:
        colour = colours.get(source, COLOURS[-1])
        parts.append(
            f'<circle cx="{place(measured):.1f}" cy="{_SIZE - place(predicted):.1f}" r="2.2" fill="{colour}" fill-opacity="0.55"/>'
        )
    parts.append(f'<text x="{_SIZE / 2}" y="{_SIZE + 40}" text-anchor="middle">measured, {drawing.unit}</text>')
    parts.append(
        f'<text transform="translate(-42 {_SIZE / 2}) rotate(-90)" text-anchor="middle">predicted, {drawing.unit}</text>'
    )
    for i, (label, colour) in enumerate(legend):
        y = 8 + 17 * i
        parts.append(f'<circle cx="{_SIZE + 18}" cy="{y}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{_SIZE + 28}" y="{y + 4}">{escape(label[:30])}</text>')
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _line(factor: float, place: Place, low: float, high: float, dash: str) -> str:
    """predicted = factor x measured, within the frame."""
    shift = log10(factor)
    first, last = max(low, low - shift), min(high, high - shift)
    x1, x2 = place(10**first), place(10**last)
    y1, y2 = _SIZE - place(10 ** (first + shift)), _SIZE - place(10 ** (last + shift))
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{SOFT.light}"{dash}/>'


def _ticks(low: float, high: float, place: Place) -> list[str]:
    """At 1, 2 and 5 times powers of ten, or powers alone where there are many."""
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    values = [m * 10.0**p for p in range(floor(low), ceil(high) + 1) for m in steps]
    parts = []
    for value in values:
        if not 10**low * 0.999 <= value <= 10**high * 1.001:
            continue
        at = place(value)
        parts.append(f'<line x1="{at:.1f}" y1="{_SIZE}" x2="{at:.1f}" y2="{_SIZE - 5}" stroke="{SOFT.light}"/>')
        parts.append(f'<text x="{at:.1f}" y="{_SIZE + 15}" text-anchor="middle">{value:g}</text>')
        parts.append(f'<line x1="0" y1="{_SIZE - at:.1f}" x2="5" y2="{_SIZE - at:.1f}" stroke="{SOFT.light}"/>')
        parts.append(f'<text x="-6" y="{_SIZE - at + 4:.1f}" text-anchor="end">{value:g}</text>')
    return parts
