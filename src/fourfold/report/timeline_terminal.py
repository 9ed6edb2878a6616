"""A timeline on a terminal: one row a rank, colour says what, numbers say which microbatch; without colour, letters."""

from rich.console import Console
from rich.text import Text

from fourfold.program import Op
from fourfold.program.timeline import Event, Timeline
from fourfold.report.format_timeline import (
    FILLS,
    INKS,
    OP_NAMES,
    Format,
    chunk_of,
    format_rank,
    has_later_stages,
    headline,
    ops_used,
    plain_number,
    shortest_entry,
)

_IDLE = "·"
_LONGEST = 4
"""Columns of the shortest entry where there is room for all."""


def print_timeline(
    timeline: Timeline,
    schedule: str,
    console: Console,
    format_time: Format = plain_number,
    format_activations: Format = plain_number,
) -> None:
    """As wide as the terminal; letters instead of colours where it is none."""
    lines = timeline_lines(
        timeline, schedule, console.width, console.color_system is not None, format_time, format_activations
    )
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def timeline_lines(
    timeline: Timeline,
    schedule: str,
    width: int,
    colour: bool,
    format_time: Format = plain_number,
    format_activations: Format = plain_number,
) -> list[Text]:
    """Headline, one row a rank with its bubble and its most live activations, legend."""
    words = [format_rank(timeline, rank, format_activations) for rank in range(timeline.num_ranks)]
    names = [f"rank {rank}" for rank in range(timeline.num_ranks)]
    titles = ("bubble", "live")
    widths = [max(len(titles[i]), *(len(row[i]) for row in words)) for i in range(2)]
    name_width = max(map(len, names))
    columns = max(10, width - name_width - sum(widths) - 6)
    scale = _scale(timeline, columns)
    drawn = round(timeline.makespan * scale)
    head = " " * (name_width + 2 + drawn) + "".join(f"  {title:>{w}}" for title, w in zip(titles, widths, strict=True))
    lines = [Text(headline(timeline, schedule, format_time)), Text(head)]
    for rank, name in enumerate(names):
        line = Text(f"{name:<{name_width}}  ")
        line.append(_row(timeline, rank, scale, colour))
        line.append("".join(f"  {word:>{w}}" for word, w in zip(words[rank], widths, strict=True)))
        lines.append(line)
    return [*lines, _legend(timeline, colour)]


def _scale(timeline: Timeline, columns: int) -> float:
    """Columns per unit of time: a whole number of them for the shortest entry where that fits."""
    if not timeline.makespan:
        return 0.0
    shortest = shortest_entry(timeline)
    cells = min(int(columns * shortest / timeline.makespan + 1e-9), _LONGEST)
    return cells / shortest if cells else columns / timeline.makespan


def _row(timeline: Timeline, rank: int, scale: float, colour: bool) -> Text:
    row, column = Text(), 0
    for event in timeline.events[rank]:
        start, end = round(event.start * scale), round(event.end * scale)
        row.append((" " if colour else _IDLE) * (start - column))
        start = max(start, column)
        if end > start:
            later = chunk_of(timeline, event.stage) > 0
            row.append(_cell(event, end - start, later, colour), _style(event.op, later) if colour else "")
        column = max(column, end)
    row.append((" " if colour else _IDLE) * (round(timeline.makespan * scale) - column))
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


def _legend(timeline: Timeline, colour: bool) -> Text:
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
    legend.append("number: microbatch   live: most activations held at once")
    return legend
