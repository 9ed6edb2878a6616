"""Metrics of a run: one JSON object a step, one a sampled step, one an event; and the trackers that get the numbers too."""

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fourfold.config import RunConfig
from fourfold.config.json_lines import JsonLines, finite, json_object, lines_from_end
from fourfold.runtime.sampling import LayerSample
from fourfold.train.trackers import flat_numbers, layer_numbers, open_trackers

METRICS, LAYERS, EVENTS = "metrics.jsonl", "layers.jsonl", "events.jsonl"
_LAYER_DIGITS = 6
"""Digits of a layer's number: a row has many."""
_DAMAGED_BYTES = 2**22
"""Bytes at the end of a file in which lines may be damaged since the launch before, which looked at those before them."""


def append_event(out: Path, name: str, **values: Any) -> None:
    """Adds one event to the run in `out`."""
    events = JsonLines(out / EVENTS)
    events.append({"time": time.time(), "event": name, **values})
    events.close()


def truncate_after(path: Path, step: int) -> None:
    """Drops the lines of steps at or past `step`, which a resumed run will write again, and what is no step: a torn last line, or
    the zeros and foreign bytes that a power cut leaves. The file is read from its end, as far as such lines can stand."""
    cut, behind, kept, seen = -1, list[bytes](), list[bytes](), 0
    for place, line in lines_from_end(path):
        row, seen = json_object(line), seen + len(line)
        if row is not None and isinstance(row.get("step"), int) and row["step"] < step:
            kept.append(line)
            if seen > _DAMAGED_BYTES:
                break
        else:
            cut, behind, kept = place, behind + kept, []
    if behind:
        _write_again(path, cut, behind[::-1])
    elif cut >= 0:
        os.truncate(path, cut)
    elif kept:
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def _write_again(path: Path, begin: int, lines: list[bytes]) -> None:
    """Replaces what stands from byte `begin` on by these lines, in one piece."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(path, aside)
        os.truncate(aside, begin)
        with open(aside, "ab") as file:
            file.writelines(line + b"\n" for line in lines)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


class RunLog:
    """Rank 0's record: `metrics.jsonl`, `layers.jsonl` where steps are sampled, `events.jsonl`, and the trackers that the run file
    asks for."""

    def __init__(self, out: Path, config: RunConfig, start_step: int) -> None:
        truncate_after(out / METRICS, start_step)
        truncate_after(out / LAYERS, start_step)
        self._metrics = JsonLines(out / METRICS)
        self._layers = JsonLines(out / LAYERS) if config.metrics.every_steps else None
        self._events = JsonLines(out / EVENTS)
        self._trackers = open_trackers(config.run.log, out, config)

    def step(self, values: Mapping[str, Any]) -> None:
        self._metrics.append(values)
        self._track(values["step"], flat_numbers(values))

    def layers(self, step: int, sample: LayerSample) -> None:
        """The numbers that step number `step` has measured."""
        row = finite({"step": step, "segments": sample.segments, **sample.values}, _LAYER_DIGITS)
        if self._layers is not None:
            self._layers.append(row)
            self._track(step, layer_numbers(row))

    def event(self, name: str, **values: Any) -> None:
        self._events.append({"time": time.time(), "event": name, **values})

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()
        self._tell_failures()
        for file in (self._metrics, self._layers, self._events):
            if file is not None:
                file.close()

    def _track(self, step: int, numbers: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            tracker.log(step, numbers)
        self._tell_failures()

    def _tell_failures(self) -> None:
        """A tracker that fails is no failure of the run."""
        for tracker in self._trackers:
            if (failure := tracker.failure()) is not None:
                self.event("log_failed", message=failure)
