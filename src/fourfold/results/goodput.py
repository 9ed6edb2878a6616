"""The share of a run's time that became training which is kept, what took the rest, and how often to save.

    launch | starting | steps, saves, evaluations | failure | starting | steps ... | finish
                                        lost steps ^

A step that was trained again counts once. Time between two launches counts for nothing.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import Any

from fourfold.results.record import ABSENT, shown
from fourfold.results.run import GoodputDocument, SaveAdviceDocument
from fourfold.simulate.campaign import best_interval, efficiency, young_interval

_BEGINS, _RUNS, _ENDS = ("launch", "restart"), ("start", "resume"), ("finish", "stop")
_NEWEST = 1000
"""Saves whose seconds advice is taken from."""
CAUSES = ("starting", "saving", "evaluating", "standing still", "lost steps", "other")


@dataclass
class MeasuredGoodput:
    """Seconds of a run by what they went to. `total_seconds`: of all launches. `starts`, `saves`: of each restart, and of the
    newest saves."""

    total_seconds: float = 0.0
    kept_seconds: float = 0.0
    """Steps whose result the run still has."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    failures: int = 0
    starts: list[float] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.kept_seconds / self.total_seconds if self.total_seconds else 1.0

    def advice(self, mean_seconds: float | None = None) -> SaveAdviceDocument | None:
        """The best time between two saves. `mean_seconds` between failures: by default as seen; None where nothing tells."""
        if mean_seconds is None:
            mean_seconds = self.total_seconds / self.failures if self.failures else None
        if mean_seconds is None or not self.saves:
            return None
        save, start = median(self.saves), median(self.starts) if self.starts else 0.0
        best = best_interval(mean_seconds, save)
        return SaveAdviceDocument(
            mean_seconds=mean_seconds,
            save_seconds=save,
            restart_seconds=start,
            young_seconds=young_interval(mean_seconds, save),
            best_seconds=best,
            expected_goodput=efficiency(best, mean_seconds, save, start),
        )

    def record(self) -> GoodputDocument:
        """Seconds by cause, the share, and advice where a failure was seen."""
        seconds = {cause.replace(" ", "_"): seconds for cause, seconds in self.seconds.items()}
        return shown(GoodputDocument, self, goodput=self.share, seconds=seconds, advice=self.advice() or ABSENT)


class Launches:
    """The launches of a run, from its events one after another, as `clean_row` gives them: memory grows with launches and restarts,
    not with saves and evaluations."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._saves = deque[float](maxlen=_NEWEST)
        self._failures = 0
        self._open_ended = self._has_ended = False

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes the next event."""
        kind, time = str(event.get("event")), float(event.get("time") or 0.0)
        self._failures += kind == "failure"
        spans = self._spans
        if kind in _BEGINS or (kind in _RUNS and (not spans or spans[-1].run is not None)):
            spans.append(_Span(time, kind == "restart", time))
        if not spans:
            return
        span = spans[-1]
        if self._has_ended and kind not in (*_BEGINS, *_RUNS, "failure"):
            return  # what follows the end of a run, as its sample, is no part of it
        self._has_ended = kind in _ENDS
        span.end, self._open_ended = max(span.end, time), kind not in (*_ENDS, "failure")
        if kind in _RUNS:
            span.run, span.step = time, int(event.get("step") or 0)
        elif kind == "save":  # beside training it holds the step up for less than it takes
            held = float(event.get("held_seconds", event.get("seconds")) or 0.0)
            span.saving += held
            if span.run is not None:
                self._saves.append(held)
        elif kind == "evaluate":
            span.evaluating += float(event.get("seconds") or 0.0)
        elif kind == "failure":
            span.failed = True
            span.still = float(event.get("stood_still_seconds") or 0.0)

    def goodput(self, rows: Iterable[Mapping[str, Any]], now: float) -> MeasuredGoodput:
        """`rows`: seconds of steps, of one or of several together that are counted with the first. `now`: Unix time at which a run
        in progress is looked at; for one that ended, that of its last event."""
        times = {
            row["step"]: row for row in rows if row.get("step") is not None and row.get("step_seconds") is not None
        }
        steps = sorted(times)
        kept = [0.0, *accumulate(float(times[step]["step_seconds"]) for step in steps)]
        copied = [0.0, *accumulate(float(times[step].get("memory_copy_seconds") or 0.0) for step in steps)]
        found = MeasuredGoodput(failures=self._failures, saves=list(self._saves))
        next_step = steps[-1] + 1 if steps else 1
        for index in reversed(range(len(self._spans))):
            span = self._spans[index]
            is_open = index == len(self._spans) - 1 and self._open_ended
            begin, run, end = span.begin, span.run, max(span.end, now) if is_open else span.end
            found.total_seconds += end - begin
            found.seconds["starting"] += (run if run is not None else end) - begin
            if run is None:
                continue
            if span.is_restart:
                found.starts.append(run - begin)
            low, high = bisect_left(steps, span.step), bisect_left(steps, next_step)
            own, copying = (sums[max(low, high)] - sums[low] for sums in (kept, copied))
            next_step = min(next_step, span.step)
            found.kept_seconds += own
            found.seconds["saving"] += span.saving + copying
            found.seconds["evaluating"] += span.evaluating
            found.seconds["standing still"] += span.still
            left = max(0.0, end - run - own - span.saving - copying - span.evaluating - span.still)
            found.seconds["lost steps" if span.failed else "other"] += left
        found.starts.reverse()
        return found


def goodput(events: Iterable[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]], now: float) -> MeasuredGoodput:
    """From a run's events, in order, and its metrics, as `Launches` takes both."""
    launches = Launches()
    for event in events:
        launches.add(event)
    return launches.goodput(rows, now)


@dataclass
class _Span:
    """One generation: from its launch or restart to its end. `run`: when it began to train, from `step`."""

    begin: float
    is_restart: bool
    end: float
    run: float | None = None
    step: int = 0
    saving: float = 0.0
    evaluating: float = 0.0
    still: float = 0.0
    failed: bool = False
