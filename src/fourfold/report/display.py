"""Displays of a run that trains: a screen in a terminal, plain lines elsewhere, a spinner while it is prepared."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fourfold.launch.run_folder import RunFolder
from fourfold.plain_text import own_codes, plain
from fourfold.report.run_state import RunState, describe_event
from fourfold.report.units import format_bytes, format_count, format_seconds, sparkline


class Terminal(Console):
    """A console whose codes are its own: control characters of the text that it shows are escaped. `errors`: on stderr."""

    def __init__(self, errors: bool = False, **options: Any) -> None:
        super().__init__(file=own_codes(sys.stderr if errors else sys.stdout), highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


@contextmanager
def preparing(what: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a line of text."""
    console = Terminal(markup=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda text: print(text, flush=True)
        return
    with console.status(what):
        yield console.print


_BLOCKS = 2
"""Blocks of metrics that are read between two looks at the ranks."""
_LINES_A_RUN = 20
_SECONDS = 10.0


class PlainDisplay:
    """Prints metrics when 10 s have passed or a twentieth of the run, whichever takes longer, and each event once."""

    def __init__(self, state: RunState, write: Callable[[str], None]) -> None:
        self._state = state
        self._write = write
        self._events_seen = 0
        self._step_shown = -1
        self._last = time.monotonic()

    def begin(self) -> None:
        """Says what will be trained."""
        info = self._state.info
        self._state.refresh(_BLOCKS)
        done = RunFolder(info.folder).steps_done() if self._state.record.behind else self._state.step
        self._step_shown = done or -1  # what an earlier launch did is not shown again
        for line in (f"run {info.name}: {info.model}", info.layout, f"folder {info.folder}"):
            self._write(line)

    def update(self) -> None:
        """Reads what is new and prints what is due."""
        if not self._state.refresh(_BLOCKS):
            return
        if not self._state.record.behind:
            self._show_step()
        record = self._state.record
        unseen = max(0, record.num_events - self._events_seen)
        self._events_seen = record.num_events
        for event in self._state.new_events[-unseen:] if unseen else ():
            self._write(describe_event(event))

    def _show_step(self) -> None:
        """Prints the newest step where it is due."""
        step, total = self._state.step, self._state.info.num_steps
        self._step_shown = min(self._step_shown, step or -1)  # a resumed run repeats what it had not saved
        passed = time.monotonic() - self._last >= _SECONDS
        grown = step - self._step_shown >= max(1, total // _LINES_A_RUN)
        if step > self._step_shown and ((passed and grown) or step == total or (self._step_shown < 0 and step > 0)):
            self._write(metrics_line(self._state))
            self._step_shown = step
            self._last = time.monotonic()

    def notice(self, text: str) -> None:
        self._write(text)


def metrics_line(state: RunState) -> str:
    """The newest step on one line."""
    last = state.last
    parts = [f"step {state.step}/{state.info.num_steps}"]
    loss, norm, mfu = state.number("loss"), state.number("grad_norm"), state.mfu
    if loss is not None:
        parts.append(f"loss {loss:.4f}")
    if norm is not None:
        parts.append(f"grad norm {norm:.3g}")
    if (rate := state.tokens_per_second) is not None:
        parts.append(f"{format_count(rate)} tokens/s")
    if mfu is not None:
        parts.append(f"MFU {100 * mfu:.1f} %")
    if (peak := state.number("peak_memory_bytes")) is not None:
        parts.append(f"peak {format_bytes(peak)}")
    if last.get("skipped_steps"):
        parts.append(f"{last['skipped_steps']} skipped")
    if (left := state.seconds_left) is not None and state.step < state.info.num_steps:
        parts.append(f"{format_seconds(left)} left")
    return "  ".join(parts)


_EVENTS = 3
_REDRAW_SECONDS = 0.25
_ECHO = 6
"""Columns left free on the right: the terminal echoes ^C there, and a line that wraps would be drawn twice."""
_DETAIL_COLUMNS = 100
"""Columns inside the panel from which there is room for more."""


class LiveDisplay:
    """The panel, from `with` to its end; its last state stays on the screen. A terminal that goes away ends it quietly."""

    def __init__(self, state: RunState, console: Console) -> None:
        self._state = state
        self._console = console
        self._spinner = Spinner("dots")
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._drawn = 0.0
        self._is_gone = False

    def __enter__(self) -> "LiveDisplay":
        self._live.start()
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw()
        try:
            self._live.stop()
        except OSError:
            self._is_gone = True

    def update(self) -> None:
        """Reads what is new; draws at most four times a second."""
        if time.monotonic() - self._drawn >= _REDRAW_SECONDS:
            self._draw()

    def notice(self, text: str) -> None:
        """Shows a line below the figures until the end."""
        self._state.notice = text
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._state.refresh(_BLOCKS)
        if self._is_gone:
            return
        try:
            self._live.update(render(self._state, self._console.width, self._spinner), refresh=True)
        except OSError:
            self._is_gone = True


def render(state: RunState, width: int, spinner: RenderableType = "") -> RenderableType:
    """The panel for a terminal of `width` columns."""
    info = state.info
    outer = max(24, min(width - _ECHO, 120))
    inner = outer - 4
    lines: list[RenderableType] = [
        Text(info.model),
        Text(info.layout, style="dim"),
        Text(),
        _progress(state, spinner),
        Text(),
        _figures(state, inner),
    ]
    events = [
        Text(f"{_clock(event.get('time'))}  {describe_event(event)}", style="dim", overflow="ellipsis", no_wrap=True)
        for event in state.new_events[-_EVENTS:]
    ]
    if events:
        lines += [Text(), *events]
    if state.notice:
        lines.append(Text(state.notice, style="bold yellow"))
    return Panel(
        Group(*lines), title=Text(info.name, style="bold"), title_align="left", width=outer, border_style="blue"
    )


def _progress(state: RunState, spinner: RenderableType) -> RenderableType:
    if state.record.behind:
        reading = Table.grid(padding=(0, 1))
        reading.add_row(spinner, Text("reading the metrics of earlier launches"))
        return reading
    if not state.step or (state.step >= state.info.num_steps and not state.finish):
        doing = describe_event(state.new_events[-1]) if state.new_events else "starting the ranks"
        row = Table.grid(padding=(0, 1))
        row.add_row(spinner, Text(doing))
        if not state.step:
            return row
    else:
        row = None
    total, step = state.info.num_steps, state.step
    left = state.seconds_left
    time_left = f"{format_seconds(left)} left" if left is not None and step < total else "done"
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    table.add_row(
        f"step [bold]{step}[/]/{total}",
        ProgressBar(total=total, completed=min(step, total), complete_style="blue", finished_style="green"),
        f"{100 * step // total} %  {time_left}",
    )
    return table if row is None else Group(table, row)


def _figures(state: RunState, inner: int) -> RenderableType:
    """Two columns of name and value."""
    table = Table.grid(padding=(0, 2))
    for style in ("dim", "bold", "dim", "bold"):
        table.add_column(style=style, no_wrap=True)
    figures = [*_losses(state, inner), *_speeds(state, inner)]
    if any(event.get("event") == "failure" for event in state.new_events):
        figures.append(("goodput", f"{100 * state.goodput.share:.1f} %"))
    half = (len(figures) + 1) // 2
    for index in range(half):
        left = figures[index]
        right = figures[half + index] if half + index < len(figures) else ("", "")
        table.add_row(*left, *right)
    return table


def _losses(state: RunState, inner: int) -> list[tuple[str, RenderableType]]:
    loss, norm = state.number("loss"), state.number("grad_norm")
    value = Text(f"{loss:.4f}" if loss is not None else "-")
    if inner >= _DETAIL_COLUMNS:
        value.append(" " + sparkline(state.losses, 24), style="cyan")
    figures: list[tuple[str, RenderableType]] = [("loss", value)]
    validation = state.validation
    figures.append(("validation loss", f"{validation[0]:.4f}" if validation else "-"))
    if state.info.unigram_entropy_nats is not None:
        figures.append(("unigram loss", f"{state.info.unigram_entropy_nats:.4f}"))
    figures.append(("gradient norm", f"{norm:.3g}" if norm is not None else "-"))
    rate = state.number("lr")
    figures.append(("learning rate", f"{rate:.2e}" if rate is not None else "-"))
    return figures


def _speeds(state: RunState, inner: int) -> list[tuple[str, RenderableType]]:
    rate, mfu, peak = state.tokens_per_second, state.mfu, state.number("peak_memory_bytes")
    moved = state.last.get("comm_bytes") or {}
    skipped = int(state.number("skipped_steps") or 0)
    tokens = state.number("tokens")
    predicted = f"predicted {format_bytes(state.info.predicted_peak_bytes)}"
    detailed = inner >= _DETAIL_COLUMNS
    memory, of_peak = predicted if peak is None else format_bytes(peak), " of measured peak" if detailed else ""
    if peak is not None and detailed:
        memory += f" ({predicted})"
    return [
        ("tokens/s", format_count(rate) if rate is not None else "-"),
        ("MFU", f"{100 * mfu:.1f} %{of_peak}" if mfu is not None else "-"),
        ("peak memory", memory),
        (
            "communication" + (" volume" if detailed else ""),
            format_bytes(sum(moved.values())) if isinstance(moved, dict) else "-",
        ),
        ("tokens seen", format_count(tokens) if tokens is not None else "-"),
        *([("skipped steps", Text(str(skipped), style="bold red"))] if skipped else []),
    ]


def _clock(seconds: object) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds)) if isinstance(seconds, (int, float)) else "        "
