"""One process a rank on this machine: started together, watched, stopped together. None outlives the launcher."""

import os
import signal
import time
from collections.abc import Callable, Mapping

from fourfold.config import RunFailure
from fourfold.config.errors import open_files_advice
from fourfold.launch.failures import RankFailure, describe_failure
from fourfold.launch.rank_process import RankProcess, Spawner, kill_session, signal_process
from fourfold.launch.run_folder import RunFolder

FINISHED, STOPPED = 0, 3
"""Exit codes of a worker: it came to the end; it stopped by request, after saving."""


class LocalRanks:
    """The processes of one generation: all ranks from one start to the first failure, or to the end. `may_finish`: whether a rank
    that ended with exit code 0 had come to its end."""

    def __init__(
        self, folder: RunFolder, spawner: Spawner, may_finish: Callable[[int], bool] = lambda rank: True
    ) -> None:
        self.exit_codes: dict[int, int] = {}
        self.failures: list[RankFailure] = []
        self.was_killed = False
        self._was_asked = False
        self._folder = folder
        self._spawner = spawner
        self._may_finish = may_finish
        self._processes: list[RankProcess] = []
        self._log_begins: list[int] = []
        self._deadline: float | None = None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self, ranks: int, threads: int, generation: int, rendezvous: Mapping[str, str]) -> None:
        """Starts all ranks. `generation`: how many starts came before. `rendezvous`: the variables by which they find each other.
        Raises `RunFailure`."""
        for rank in range(ranks):
            environment: Mapping[str, str] = {
                **rendezvous,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "OMP_NUM_THREADS": str(threads),
                "FOURFOLD_PARENT": str(os.getpid()),
                "FOURFOLD_GENERATION": str(generation),
                "PYTHONUNBUFFERED": "1",
            }
            try:
                with open(self._folder.log(rank), "ab" if generation else "wb") as log:
                    self._log_begins.append(log.tell())
                    self._processes.append(self._spawner.spawn(environment, log))
            except OSError as error:
                works = open_files_advice(error) or "use fewer ranks with --ranks, or free memory and disk"
                raise RunFailure(f"rank {rank} of {ranks} cannot be started ({error}); {works}") from None

    @property
    def is_ending(self) -> bool:
        """Whether `end` was called."""
        return self._deadline is not None

    def alive(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def collect(self) -> None:
        """Notes ranks that have ended."""
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is None or rank in self.exit_codes:
                continue
            self.exit_codes[rank] = code
            ended_by_us = self.was_killed or (self._was_asked and code == -signal.SIGTERM)
            fine = self._may_finish(rank) if code == FINISHED else code == STOPPED
            if not fine and not ended_by_us:
                self.failures.append(describe_failure(rank, code, self._folder.log(rank), self._log_begins[rank]))
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.kill()

    def ask(self) -> None:
        """Asks all ranks to save and stop, those too that somebody has stopped."""
        self._was_asked = True
        for process in self._processes:
            signal_process(process, signal.SIGTERM)
            signal_process(process, signal.SIGCONT)

    def end(self, grace_seconds: float) -> None:
        """Ends all ranks: gently, and by force after the grace."""
        if self._deadline is None:
            self._deadline = time.monotonic() + grace_seconds
            self.ask()

    def kill(self) -> None:
        """Ends every rank and what it started, at once."""
        self.was_killed |= self.alive()
        for process in self._processes:
            kill_session(process)
        for process in self._processes:
            process.wait()
