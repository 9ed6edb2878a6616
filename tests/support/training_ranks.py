"""Ranks that train a run's folder: the worker's own function, in processes that are forked and need not import torch."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from fourfold.rendezvous.server import StoreServer
from fourfold.train.worker import run_worker
from tests.support.forking import forking_context


class TrainingRank:
    """One rank in a process of its own, and what it writes to standard error."""

    def __init__(self, out: Path, environment: dict[str, str], harm: Callable[[], None] | None = None) -> None:
        self._errors = out / f"errors-{environment['RANK']}.txt"
        self._process = forking_context().Process(
            target=_train, args=(out, environment, self._errors, harm), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def send_signal(self, number: int) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def finish(self, timeout: float) -> tuple[int, str]:
        """Exit code, negative for a signal, and what the rank said. Raises `TimeoutError` where it has not ended in time."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"a rank has not ended in {timeout} s; it said: {self._errors.read_text()}")
        return self._process.exitcode, self._errors.read_text()


def _train(out: Path, environment: dict[str, str], errors: Path, harm: Callable[[], None] | None) -> None:
    os.environ.update(environment, FOURFOLD_PARENT=str(os.getppid()))
    if harm is not None:
        harm()
    with open(errors, "w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    code = run_worker(out)
    sys.stderr.flush()
    os._exit(code)  # as the worker's own process ends


def start_training(out: Path, ranks: int, harm: Callable[[], None] | None = None) -> list[TrainingRank]:
    """All ranks of the run in `out`. `harm`: a function of a module, called in each rank before it begins."""
    server = StoreServer()
    server.start()
    shared = {**os.environ, **server.environment(), "WORLD_SIZE": str(ranks)}
    places = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return [TrainingRank(out, place, harm) for place in places]
