"""The share of a run's time that became training which is kept, what took the rest, and how often to save.

    launch | starting | steps, saves, evaluations | failure | starting | steps ... | finish
                                        lost steps ^

A step that was trained again counts once. Time between two launches counts for nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from fourfold.results.record import ABSENT, shown
from fourfold.results.run import GoodputDocument, SaveAdviceDocument
from fourfold.simulate.campaign import best_interval, efficiency, young_interval

_BEGINS, _RUNS, _ENDS = ("launch", "restart"), ("start", "resume"), ("finish", "stop")
CAUSES = ("starting", "saving", "evaluating", "standing still", "lost steps", "other")


@dataclass
class MeasuredGoodput:
    """Seconds of a run by what they went to. `total_seconds`: of all launches. `starts`, `saves`: of each restart and save."""

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


def goodput(events: Sequence[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]], now: float) -> MeasuredGoodput:
    """From a run's events, in order, and its metrics, as `clean_row` gives both. `now`: Unix time at which a run in progress
    is looked at; for one that ended, that of its last event."""
    steps, copies = dict[int, float](), dict[int, float]()
    for row in rows:
        if row.get("step") is not None and row.get("step_seconds") is not None:
            steps[row["step"]] = float(row["step_seconds"])
            copies[row["step"]] = float(row.get("memory_copy_seconds") or 0.0)
    found = MeasuredGoodput()
    spans = _spans(events, now)
    for index, span in enumerate(spans):
        begin, run, end = span.begin, span.run, span.end
        found.total_seconds += end - begin
        found.seconds["starting"] += (run if run is not None else end) - begin
        if run is None:
            continue
        if span.is_restart:
            found.starts.append(run - begin)
        later = [other.step for other in spans[index + 1 :] if other.run is not None]
        stays = range(span.step, min(later, default=max(steps, default=0) + 1))
        kept = sum(seconds for step, seconds in steps.items() if step in stays)
        copying = sum(seconds for step, seconds in copies.items() if step in stays)
        found.kept_seconds += kept
        found.seconds["saving"] += sum(span.saves) + copying
        found.saves += span.saves
        found.seconds["evaluating"] += span.evaluating
        found.seconds["standing still"] += span.still
        left = max(0.0, end - run - kept - sum(span.saves) - copying - span.evaluating - span.still)
        found.seconds["lost steps" if span.failed else "other"] += left
    found.failures = sum(event.get("event") == "failure" for event in events)
    return found


@dataclass
class _Span:
    """One generation: from its launch or restart to its end. `run`: when it began to train, from `step`."""

    begin: float
    is_restart: bool
    end: float
    run: float | None = None
    step: int = 0
    saves: list[float] = field(default_factory=list)
    evaluating: float = 0.0
    still: float = 0.0
    failed: bool = False


def _spans(events: Sequence[Mapping[str, Any]], now: float) -> list[_Span]:
    spans: list[_Span] = []
    open_ended = has_ended = False
    for event in events:
        kind, time = str(event.get("event")), float(event.get("time") or 0.0)
        if kind in _BEGINS or (kind in _RUNS and (not spans or spans[-1].run is not None)):
            spans.append(_Span(time, kind == "restart", time))
        if not spans:
            continue
        span = spans[-1]
        if has_ended and kind not in (*_BEGINS, *_RUNS, "failure"):
            continue  # what follows the end of a run, as its sample, is no part of it
        has_ended = kind in _ENDS
        span.end, open_ended = max(span.end, time), kind not in (*_ENDS, "failure")
        if kind in _RUNS:
            span.run, span.step = time, int(event.get("step") or 0)
        elif kind == "save":  # beside training it holds the step up for less than it takes
            span.saves.append(float(event.get("held_seconds", event.get("seconds")) or 0.0))
        elif kind == "evaluate":
            span.evaluating += float(event.get("seconds") or 0.0)
        elif kind == "failure":
            span.failed = True
            span.still = float(event.get("stood_still_seconds") or 0.0)
    if spans and open_ended:
        spans[-1].end = max(spans[-1].end, now)
    return spans
