"""Metrics of a run: one JSON object a step, one an event, and optional trackers behind one small interface."""

import importlib.util
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fourfold.config import RunConfig, UserError
from fourfold.config.errors import error_text
from fourfold.config.json_lines import JsonLines, json_object, lines_from_end

EVENTS = "events.jsonl"
_DAMAGED_BYTES = 2**22
"""Bytes at the end of a file in which lines may be damaged since the launch before, which looked at those before them."""


class MetricsSink(Protocol):
    """Where numbers go."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


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
    """Rank 0's record: `metrics.jsonl`, `events.jsonl`, and the sinks that the run file asks for."""

    def __init__(self, out: Path, config: RunConfig, start_step: int) -> None:
        truncate_after(out / "metrics.jsonl", start_step)
        self._metrics = JsonLines(out / "metrics.jsonl")
        self._events = JsonLines(out / EVENTS)
        self._sinks: Sequence[MetricsSink] = [_SINKS[name](out, config) for name in config.run.log]

    def step(self, values: Mapping[str, Any]) -> None:
        self._metrics.append(values)
        numbers = {k: float(v) for k, v in values.items() if isinstance(v, (int, float)) and k != "step"}
        for axes, size in values["comm_bytes"].items():
            numbers[f"comm_bytes/{axes}"] = float(size)
        for name, loss in values.get("validation_losses", {}).items():
            numbers[f"validation_loss/{name}"] = float("nan") if loss is None else float(loss)
        for sink in self._sinks:
            sink.log(values["step"], numbers)

    def event(self, name: str, **values: Any) -> None:
        self._events.append({"time": time.time(), "event": name, **values})

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:  # a tracker that does not answer any more is no failure of the run
                self.event("log_failed", message=f"{type(sink).__name__.strip('_')}: {error_text(error)}")
        self._metrics.close()
        self._events.close()


def require_sinks(names: Sequence[str]) -> None:
    """Raises `UserError` for a tracker in `run.log` whose library is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"run.log = {list(names)!r} names {name!r}, which is not installed; pip install 'fourfold[{name}]', or leave it out"
            )


class _TensorBoard:
    def __init__(self, out: Path, config: RunConfig) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(out / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, out: Path, config: RunConfig) -> None:
        import wandb

        self._run = wandb.init(project="fourfold", name=out.name, dir=str(out), config=config.model_dump(mode="json"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    def __init__(self, out: Path, config: RunConfig) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.set_experiment("fourfold")
        mlflow.start_run(run_name=out.name)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self._mlflow.end_run()


_SINKS: dict[str, Any] = {"tensorboard": _TensorBoard, "wandb": _WeightsAndBiases, "mlflow": _MLflow}
