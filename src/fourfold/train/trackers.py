"""Trackers beside `metrics.jsonl`: TensorBoard, Weights & Biases, MLflow, each behind the run in a thread of its own.

A step waits for none of them. One that fails, or that falls too far behind, is told once and left out until the run is started
again: the run's own files have every number.
"""

import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fourfold.config import RunConfig, UserError
from fourfold.config.errors import error_text

_MOST_WAITING = 4096
"""Rows that wait for a tracker at most."""
_CLOSE_SECONDS = 60.0


class Tracker(Protocol):
    """Where numbers go. All is called in one thread."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Behind:
    """A tracker in a thread, to which numbers are given without waiting."""

    def __init__(self, name: str, make: Callable[[], Tracker], close_seconds: float = _CLOSE_SECONDS) -> None:
        self.name = name
        self._make, self._close_seconds = make, close_seconds
        self._rows: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_MOST_WAITING)
        self._failure: str | None = None
        self._is_told = False
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hands over a row."""
        if self._failure is None:
            try:
                self._rows.put_nowait((step, values))
            except queue.Full:
                self._failure = f"is {_MOST_WAITING} rows behind"

    def close(self) -> None:
        """Waits for what was handed over, for a minute at most."""
        with suppress(queue.Full):
            self._rows.put(None, timeout=self._close_seconds)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive() and self._failure is None:
            self._failure = f"has not ended within {self._close_seconds:g} s"

    def failure(self) -> str | None:
        """A message the first time that somebody asks behind a failure; else None."""
        if self._failure is None or self._is_told:
            return None
        self._is_told = True
        return f"{self.name}: {self._failure}; it gets nothing more until the run is started again, metrics.jsonl has everything"

    def _run(self) -> None:
        """A package of somebody else may raise anything."""
        try:
            tracker = self._make()
            while (row := self._rows.get()) is not None:
                if self._failure is None:
                    tracker.log(*row)
            tracker.close()
        except BaseException as error:
            self._failure = error_text(error) if isinstance(error, Exception) else repr(error)


def open_trackers(names: Sequence[str], out: Path, config: RunConfig) -> list[Behind]:
    """The trackers that the run file names, once each."""

    def opened(name: str) -> Behind:
        return Behind(name, lambda: _TRACKERS[name](out, config))

    return [opened(name) for name in dict.fromkeys(names)]


def require_trackers(names: Sequence[str]) -> None:
    """Raises `UserError` for a tracker in `run.log` whose library is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"run.log = {list(names)!r} names {name!r}, which is not installed; pip install 'fourfold[{name}]', or leave it out"
            )


def flat_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a step's row, those of a table under its name: `comm_bytes/dp_shard`, `validation_loss/code`. A named loss
    that is no number is NaN."""
    numbers = {key: float(value) for key, value in values.items() if isinstance(value, (int, float)) and key != "step"}
    for axes, size in values["comm_bytes"].items():
        numbers[f"comm_bytes/{axes}"] = float(size)
    for name, loss in values.get("validation_losses", {}).items():
        numbers[f"validation_loss/{name}"] = float("nan") if loss is None else float(loss)
    return numbers


def layer_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row of `layers.jsonl`, each under its quantity and its segment: `gradient_norm/b3`."""
    return dict(_layer_numbers(row))


def _layer_numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for quantity, values in row.items():
        if quantity not in ("step", "segments"):
            for segment, value in zip(row["segments"], values, strict=True):
                if value is not None:
                    yield f"{quantity}/{segment}", float(value)


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
    """Steps of a run that went back are behind its own counter of rows: `step` is a column, and the axis of all others."""

    def __init__(self, out: Path, config: RunConfig) -> None:
        import wandb

        self._run = wandb.init(project="fourfold", name=out.name, dir=str(out), config=config.model_dump(mode="json"))
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

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


_TRACKERS: dict[str, Callable[[Path, RunConfig], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}
