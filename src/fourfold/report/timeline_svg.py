"""A timeline as a picture: one self-contained SVG."""

from xml.sax.saxutils import escape

from fourfold.program.timeline import Event, Timeline
from fourfold.report.palette import INK, SOFT, SURFACE, TIME
from fourfold.report.timeline_text import (
    FILLS,
    INKS,
    OP_NAMES,
    Format,
    chunk_of,
    format_rank,
    has_later_stages,
    headline,
    ops_used,
    shortest_entry,
)
from fourfold.report.units import plain_number

_IDLE = TIME["idle"].light
_ROW, _GAP, _TOP, _LEFT, _RIGHT = 24, 6, 62, 70, 170
_LETTER = 6.5
"""Pixels of a digit in a cell."""
_WIDEST, _NARROWEST = 2400, 720
_MOST_TITLES = 20_000
"""More entries than these get no title of their own to show under a pointer: the file would be large."""


def timeline_svg(
    timeline: Timeline,
    schedule: str,
    format_time: Format = plain_number,
    format_activations: Format = plain_number,
) -> str:
    """Title with the bubble, one row a rank with its bubble and its most live activations, an axis of time, a legend."""
    scale = _scale(timeline)
    drawn = timeline.makespan * scale
    bottom = _TOP + timeline.num_ranks * (_ROW + _GAP)
    title = escape(headline(timeline, schedule, format_time))
    width, height = _LEFT + drawn + _RIGHT, bottom + 86
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK.light}">',
        f"<title>{title}</title>",
        f'<rect width="{width:.0f}" height="{height}" fill="{SURFACE.light}"/>',
        _text(12, 26, title, 'font-size="15" font-weight="600"'),
        _text(_LEFT + drawn + 76, _TOP - 8, "bubble", 'text-anchor="end"'),
        _text(_LEFT + drawn + 156, _TOP - 8, "live", 'text-anchor="end"'),
    ]
    with_titles = sum(map(len, timeline.events)) <= _MOST_TITLES
    for rank in range(timeline.num_ranks):
        lines += _row(timeline, rank, scale, format_activations, format_time if with_titles else None)
    return "\n".join(
        [*lines, *_axis(timeline, scale, bottom, format_time), *_legend(timeline, bottom + 46), "</svg>\n"]
    )


def _scale(timeline: Timeline) -> float:
    """Pixels per unit of time: two digits fit in the shortest entry where the picture stays within bounds."""
    if not timeline.makespan:
        return 0.0
    wanted = 3.2 * _LETTER / shortest_entry(timeline) * timeline.makespan
    return min(max(wanted, _NARROWEST), _WIDEST) / timeline.makespan


def _row(
    timeline: Timeline, rank: int, scale: float, format_activations: Format, format_time: Format | None
) -> list[str]:
    top, drawn = _TOP + rank * (_ROW + _GAP), timeline.makespan * scale
    bubble, live = format_rank(timeline, rank, format_activations)
    middle = top + _ROW / 2 + 4
    lines = [
        _text(12, middle, f"rank {rank}"),
        f'<rect x="{_LEFT}" y="{top}" width="{drawn:.2f}" height="{_ROW}" fill="{_IDLE}"/>',
    ]
    for event in timeline.events[rank]:
        lines += _cell(event, chunk_of(timeline, event.stage) > 0, scale, top, format_time)
    right = 'text-anchor="end"'
    return [
        *lines,
        _text(_LEFT + drawn + 76, middle, bubble, right),
        _text(_LEFT + drawn + 156, middle, escape(live), right),
    ]


def _cell(event: Event, later: bool, scale: float, top: int, format_time: Format | None) -> list[str]:
    x, width = _LEFT + event.start * scale, (event.end - event.start) * scale
    told = ""
    if format_time is not None:
        span = f"{format_time(event.start)} to {format_time(event.end)}"
        told = (
            f"<title>{OP_NAMES[event.op]}, stage {event.stage}, microbatch {event.microbatch}: {escape(span)}</title>"
        )
    box = f'x="{x:.2f}" y="{top}" width="{max(width - 0.8, 0.2):.2f}" height="{_ROW}" fill="{FILLS[event.op][later]}"'
    lines = [f"<rect {box}>{told}</rect>" if told else f"<rect {box}/>"]
    number = str(event.microbatch)
    if len(number) * _LETTER + 3 <= width:
        style = f'text-anchor="middle" font-size="11" fill="{INKS[later]}" pointer-events="none"'
        lines.append(_text(x + width / 2, top + _ROW / 2 + 4, number, style))
    return lines


def _axis(timeline: Timeline, scale: float, bottom: int, format_time: Format) -> list[str]:
    """Time at five places."""
    lines = []
    for part in range(5):
        time = timeline.makespan * part / 4
        x = _LEFT + time * scale
        lines.append(f'<line x1="{x:.2f}" y1="{bottom}" x2="{x:.2f}" y2="{bottom + 5}" stroke="{SOFT.light}"/>')
        lines.append(
            _text(x, bottom + 18, escape(format_time(time)), f'text-anchor="middle" fill="{SOFT.light}" font-size="11"')
        )
    return lines


def _legend(timeline: Timeline, y: int) -> list[str]:
    several = has_later_stages(timeline)
    entries = [(FILLS[op], OP_NAMES[op]) for op in ops_used(timeline)] + [((_IDLE,), "idle")]
    lines, x = [], float(_LEFT)
    for fills, word in entries:
        for fill in fills if several else fills[:1]:
            lines.append(f'<rect x="{x:.1f}" y="{y - 11}" width="14" height="14" fill="{fill}"/>')
            x += 16
        lines.append(_text(x + 3, y, word))
        x += 18 + 7 * len(word)
    note = "numbers: microbatches" + ("; lighter: a rank's later stages" if several else "")
    words = "bubble: idle share of the step; live: most activations held at once"
    grey = f'fill="{SOFT.light}"'
    return [*lines, _text(x + 4, y, note, grey), _text(_LEFT, y + 20, words, grey)]


def _text(x: float, y: float, content: str, style: str = "") -> str:
    """`content` is escaped already."""
    return f'<text x="{x:.1f}" y="{y:.1f}"{" " + style if style else ""}>{content}</text>'
