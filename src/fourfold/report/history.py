"""The history of a run on one time line: starts, stops, failures, restarts, changes of layout, keys and code, branches.

Any part of fourfold adds to it by an event of the run, with `append_event(out, NAME, step=..., message=...)`: whatever is not
routine is on the time line, under its name where `describe_event` has no words for it.
"""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from fourfold.results.run import EventDocument

ROUTINE = frozenset(("save", "evaluate", "machine", "preflight", "phase", "skip", "sample"))
"""Events that a run has again and again, or that tell only how it computes."""
_FIRST, _NEWEST = 50, 450
_SHOWN_FIRST, _SHOWN_NEWEST = 5, 20
_LETTERS = 160


class History:
    """The events of a time line, as they come: the first and the newest are kept. `num_events`: all that there were."""

    def __init__(self) -> None:
        self._first = list[EventDocument]()
        self._newest = deque[EventDocument](maxlen=_NEWEST)
        self.num_events = 0

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes the next event, with its `text`, unless it is routine."""
        kind = event["event"]
        if kind in ROUTINE or "backend" in event:
            return
        self.num_events += 1
        kept = self._first if len(self._first) < _FIRST else self._newest
        kept.append(EventDocument(time=event.get("time"), event=kind, step=event.get("step"), text=event["text"]))

    @property
    def entries(self) -> list[EventDocument]:
        """Kept events, in order."""
        return [*self._first, *self._newest]


def history_lines(history: History) -> list[str]:
    """The lines of `fourfold report`: clock, step and words of each event; of many the first and the newest."""
    entries = history.entries
    if not entries:
        return []
    last = entries[_SHOWN_FIRST:][-_SHOWN_NEWEST:]
    left_out = history.num_events - min(_SHOWN_FIRST, len(entries)) - len(last)
    between = [f"  ... {left_out:,} more: on the page, and in events.jsonl"] if left_out else []
    return ["history", *map(_line, entries[:_SHOWN_FIRST]), *between, *map(_line, last)]


def _line(event: EventDocument) -> str:
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time)) if event.time is not None else ""
    step = f"{event.step:,}" if event.step is not None else ""
    text = event.text.splitlines()[0] if event.text else event.event
    return f"  {clock:19}  {step:>9}  {text if len(text) <= _LETTERS else text[: _LETTERS - 3] + '...'}"
