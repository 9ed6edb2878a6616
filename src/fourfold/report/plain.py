"""A run that trains where there is no terminal: a line now and then, and every event."""

import time
from collections.abc import Callable

from fourfold.report.run_state import RunState, describe_event
from fourfold.report.units import format_bytes, format_count, format_seconds

_LINES_A_RUN = 20
_SECONDS = 10.0


class PlainDisplay:
    """Prints metrics when 10 s have passed or a twentieth of the run, whichever takes longer, and each event once."""

    def __init__(self, state: RunState, write: Callable[[str], None]) -> None:
        self._state = state
        self._write = write
        self._events_shown = 0
        self._step_shown = -1
        self._last = time.monotonic()

    def begin(self) -> None:
        """Says what will be trained."""
        info = self._state.info
        self._state.refresh()
        self._step_shown = self._state.step or -1  # what an earlier launch did is not shown again
        for line in (f"run {info.name}: {info.model}", info.layout, f"folder {info.folder}"):
            self._write(line)

    def update(self) -> None:
        """Reads what is new and prints what is due."""
        if not self._state.refresh():
            return
        step, total = self._state.step, self._state.info.num_steps
        self._step_shown = min(self._step_shown, step or -1)  # a resumed run repeats what it had not saved
        passed = time.monotonic() - self._last >= _SECONDS
        grown = step - self._step_shown >= max(1, total // _LINES_A_RUN)
        if step > self._step_shown and ((passed and grown) or step == total or (self._step_shown < 0 and step > 0)):
            self._write(metrics_line(self._state))
            self._step_shown = step
            self._last = time.monotonic()
        events = self._state.new_events
        for event in events[self._events_shown :]:
            self._write(describe_event(event))
        self._events_shown = len(events)

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
