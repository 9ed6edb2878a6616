"""A timeline on a terminal: one row a rank, colour says what, numbers say which microbatch; without colour, letters."""

from math import ceil, floor, log10

from rich.console import Console
from rich.text import Text

from fourfold.program import Op
from fourfold.program.timeline import Event, Timeline
from fourfold.report.timeline_text import (
    FILLS,
    INKS,
    OP_NAMES,
    Format,
    Window,
    chunk_of,
    format_rank,
    full_window,
    has_later_stages,
    headline,
    ops_used,
    shortest_entry,
)
from fourfold.report.units import plain_number

_IDLE = "·"
_TICK_COLUMNS = 12
"""Columns between two labels of the axis, at least."""
_LONGEST = 4
"""Columns of the shortest entry where there is room for all."""


def print_timeline(
    timeline: Timeline,
    schedule: str,
    console: Console,
    format_time: Format = plain_number,
    format_activations: Format = plain_number,
    window: Window | None = None,
) -> None:
    """Prints a timeline as wide as the terminal; letters instead of colours where it is none."""
    colour = console.color_system is not None
    lines = timeline_lines(timeline, schedule, console.width, colour, format_time, format_activations, window)
    for line in lines:
        wraps = line in (lines[0], lines[-1])
        console.print(line, no_wrap=not wraps, overflow="fold" if wraps else "ignore", crop=False)


def timeline_lines(
    timeline: Timeline,
    schedule: str,
    width: int,
    colour: bool,
    format_time: Format = plain_number,
    format_activations: Format = plain_number,
    window: Window | None = None,
) -> list[Text]:
    """Headline, axis of time, one row a rank with its bubble and its most live activations, legend with what is left out. Where
    entries are narrower than a column, a column shows the operation that fills most of it."""
    window = window or full_window(timeline)
    words = [format_rank(timeline, rank, format_activations) for rank in window.ranks]
    names = [f"rank {rank}" for rank in window.ranks]
    titles = ("bubble", "live")
    widths = [max(len(titles[i]), *(len(row[i]) for row in words)) for i in range(2)]
    name_width = max(map(len, names))
    room = max(10, width - name_width - sum(widths) - 6)
    scale, coarse = _scale(timeline, window, room)
    drawn = round(window.length * scale)
    head = f"{'time':<{name_width}}  {_axis(window, scale, drawn, format_time)}"
    lines = [
        Text(headline(timeline, schedule, format_time)),
        Text(head + "".join(f"  {title:>{w}}" for title, w in zip(titles, widths, strict=True))),
    ]
    for row, (rank, name) in enumerate(zip(window.ranks, names, strict=True)):
        line = Text(f"{name:<{name_width}}  ")
        line.append((_coarse_row if coarse else _row)(timeline, rank, window, scale, colour))
        line.append("".join(f"  {word:>{w}}" for word, w in zip(words[row], widths, strict=True)))
        lines.append(line)
    legend = _legend(timeline, colour, coarse)
    for note in _left_out(timeline, window, coarse, drawn, format_time):
        legend.append(f"\n{note}")
    return [*lines, legend]


def _scale(timeline: Timeline, window: Window, room: int) -> tuple[float, bool]:
    """Columns per unit of time, a whole number of them for the shortest entry where that fits; whether entries are narrower."""
    if not timeline.makespan:
        return 0.0, False
    shortest = shortest_entry(timeline)
    cells = min(int(room * shortest / window.length + 1e-9), _LONGEST)
    return (cells / shortest, False) if cells else (room / window.length, True)


def _axis(window: Window, scale: float, drawn: int, format_time: Format) -> str:
    """Times at round numbers, each above its column."""
    line, step = "", _tick(window.length, max(1, drawn // _TICK_COLUMNS))
    tick = ceil(window.begin / step - 1e-9) if step else 0
    while step and tick * step <= window.end:
        column, label = round((tick * step - window.begin) * scale), format_time(tick * step)
        if column >= len(line) and column + len(label) <= drawn:
            line = f"{line:<{column}}{label} "
        tick += 1
    return f"{line[:drawn]:<{drawn}}"


def _tick(length: float, most: int) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not in `length` more than `most` times."""
    if length <= 0:
        return 0.0
    power = 10.0 ** floor(log10(length / most))
    return next(power * times for times in (1, 2, 5, 10) if length / (power * times) <= most * (1 + 1e-9))


def _left_out(timeline: Timeline, window: Window, coarse: bool, drawn: int, format_time: Format) -> list[str]:
    """Lines on ranks, times and entries that the drawing leaves out, with the options that show them."""
    lines = []
    if len(window.ranks) < timeline.num_ranks:
        lines.append(
            f"{len(window.ranks)} of {timeline.num_ranks} ranks: --pp-ranks 0-{timeline.num_ranks - 1} shows all"
        )
    if not window.is_full(timeline):
        span = f"{format_time(window.begin)} to {format_time(window.end)} of {format_time(timeline.makespan)}"
        lines.append(f"{span}; bubble and live: of the full step")
    if coarse:
        each, shortest = format_time(window.length / max(1, drawn)), shortest_entry(timeline)
        zoom = f"--from {window.begin:.6g} --to {window.begin + max(1, drawn // _LONGEST) * shortest:.6g}"
        lines.append(f"a column is {each}, more than an entry: it shows what fills most of it; {zoom} shows entries")
    return lines


def _row(timeline: Timeline, rank: int, window: Window, scale: float, colour: bool) -> Text:
    row, column = Text(), 0
    drawn = round(window.length * scale)
    for event in timeline.events[rank]:
        if event.end <= window.begin or event.start >= window.end:
            continue
        start, end = (min(drawn, max(0, round((t - window.begin) * scale))) for t in (event.start, event.end))
        row.append((" " if colour else _IDLE) * (start - column))
        start = max(start, column)
        if end > start:
            later = chunk_of(timeline, event.stage) > 0
            row.append(_cell(event, end - start, later, colour), _style(event.op, later) if colour else "")
        column = max(column, end)
    row.append((" " if colour else _IDLE) * (drawn - column))
    return row


def _coarse_row(timeline: Timeline, rank: int, window: Window, scale: float, colour: bool) -> Text:
    """A column a letter: the operation that fills most of its time, or none."""
    drawn = round(window.length * scale)
    busy: list[dict[tuple[Op, bool], float]] = [{} for _ in range(drawn)]
    for event in timeline.events[rank]:
        start, end = ((t - window.begin) * scale for t in (event.start, event.end))
        key = event.op, chunk_of(timeline, event.stage) > 0
        for column in range(max(0, int(start)), min(drawn, ceil(end))):
            part = min(end, column + 1) - max(start, column)
            busy[column][key] = busy[column].get(key, 0.0) + part
    row = Text()
    for parts in busy:
        (op, later), _ = max(parts.items(), key=lambda item: item[1], default=((None, False), 0.0))
        if op is None or sum(parts.values()) < 0.5:
            row.append(" " if colour else _IDLE)
        else:
            letter = op.value.lower() if later else op.value
            row.append(" " if colour else letter, _style(op, later) if colour else "")
    return row


def _style(op: Op, later: bool) -> str:
    return f"{INKS[later]} on {FILLS[op][later]}"


def _cell(event: Event, width: int, later: bool, colour: bool) -> str:
    number = str(event.microbatch)
    if colour:
        return f"{number:<{width}}" if len(number) <= width else " " * width
    letter = event.op.value.lower() if later else event.op.value
    text = letter + number if len(number) < width else letter
    return f"{text:─<{width}}"


def _legend(timeline: Timeline, colour: bool, coarse: bool) -> Text:
    several = has_later_stages(timeline)
    legend = Text()
    for op in ops_used(timeline):
        if colour:
            legend.append(f" {op.value} ", _style(op, False))
            if several:
                legend.append(f" {op.value} ", _style(op, True))
            legend.append(f" {OP_NAMES[op]}   ")
        else:
            legend.append(f"{op.value} {OP_NAMES[op]}   ")
    if not colour:
        legend.append(f"{_IDLE} idle   ")
    if several:
        legend.append("lighter: a rank's later stages   " if colour else "lower case: a rank's later stages   ")
    legend.append("" if coarse else "number: microbatch   ")
    legend.append("live: most activations held at once")
    return legend
