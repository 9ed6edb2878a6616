"""One process a rank on this machine: started together, watched, stopped together. None outlives the supervisor."""

import os
import signal
import time
from collections.abc import Callable, Mapping

from fourfold.config import RunFailure
from fourfold.config.errors import open_files_advice
from fourfold.config.own_code import own_code
from fourfold.launch.bounded_log import bound_log, open_log
from fourfold.launch.failures import RankFailure, describe_failure, describe_signal
from fourfold.launch.machine import oom_kills
from fourfold.launch.rank_process import RankProcess, Spawner, kill_session, signal_process
from fourfold.launch.run_folder import RunFolder
from fourfold.train.exit_record import ExitRecord, exit_record_file, read_exit_record
from fourfold.train.provenance import CODE

FINISHED, STOPPED = 0, 3
"""Exit codes of a worker: it came to the end; it stopped by request, after saving."""
_POLL_SECONDS = 0.002
_LOG_SECONDS = 10.0
"""Time between two looks at the sizes of logs."""
_DEATH_SECONDS = 30.0
"""How long a rank that was killed may still be there: the kernel ends none that waits for a device or is frozen."""


class LocalRanks:
    """The processes of one generation on machine number `machine`: its ranks from one start to the first failure, or to the end.
    `may_finish`: whether a rank that ended with exit code 0 had come to its end."""

    def __init__(
        self,
        folder: RunFolder,
        spawner: Spawner,
        may_finish: Callable[[int], bool] = lambda rank: True,
        machine: int = 0,
    ) -> None:
        self.exit_codes: dict[int, int] = {}
        self.failures: list[RankFailure] = []
        self.was_killed = False
        self._was_asked = False
        self._folder = folder
        self._spawner = spawner
        self._may_finish = may_finish
        self.machine = machine
        self._processes: dict[int, RankProcess] = {}
        self._log_begins: dict[int, int] = {}
        self._logs_seen = time.monotonic()
        self._deadline: float | None = None
        self._oom_kills = oom_kills()

    @property
    def pids(self) -> dict[int, int]:
        """The process of each rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def start(
        self, slots: Mapping[int, int], world_size: int, threads: int, generation: int, variables: Mapping[str, str]
    ) -> None:
        """Starts the ranks of this machine. `slots`: the device of each, or its number where there are none. `generation`: how many
        starts came before. `variables`: those by which all ranks find each other. Raises `RunFailure`."""
        for rank, slot in slots.items():
            environment: Mapping[str, str] = {
                **variables,
                "RANK": str(rank),
                "LOCAL_RANK": str(slot),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(len(slots)),
                "OMP_NUM_THREADS": str(threads),
                "FOURFOLD_PARENT": str(os.getpid()),
                "FOURFOLD_GENERATION": str(generation),
                "FOURFOLD_MACHINE": str(self.machine),
                CODE: own_code().digest,
                "PYTHONUNBUFFERED": "1",
            }
            try:
                with open_log(self._folder.log(rank), anew=not generation) as log:
                    self._log_begins[rank] = log.tell()
                    self._processes[rank] = self._spawner.spawn(environment, log)
            except RunFailure as error:
                if self._spawner.exit_code is None:
                    raise
                self.failures.append(RankFailure(rank, 1, str(error), "server"))
                return
            except OSError as error:
                works = open_files_advice(error) or "use fewer ranks with --ranks, or free memory and disk"
                raise RunFailure(f"rank {rank} of {world_size} cannot be started ({error}); {works}") from None

    @property
    def is_ending(self) -> bool:
        """Whether `end` was called."""
        return self._deadline is not None

    def alive(self) -> bool:
        return any(process.poll() is None for process in self._processes.values())

    def collect(self) -> None:
        """Notes ranks that have ended."""
        for rank, process in self._processes.items():
            code = process.poll()
            if code is None or rank in self.exit_codes:
                continue
            record = read_exit_record(exit_record_file(self._folder.path, rank), process.pid)
            if record is not None and record.code == FINISHED:
                code = FINISHED  # how a process ends whose run has finished changes nothing
            self.exit_codes[rank] = code
            ended_by_us = self.was_killed or (self._was_asked and code == -signal.SIGTERM)
            stopped = code == STOPPED and (record is None or record.code == STOPPED)
            fine = self._may_finish(rank) if code == FINISHED else stopped
            if not fine and not ended_by_us:
                self.failures.append(self._describe(rank, code, record))
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.kill()
        if time.monotonic() > self._logs_seen + _LOG_SECONDS:
            self._bound_logs()

    def _bound_logs(self) -> None:
        self._logs_seen = time.monotonic()
        for rank in self._processes:
            self._log_begins[rank] -= bound_log(self._folder.log(rank))

    def _describe(self, rank: int, code: int, record: ExitRecord | None) -> RankFailure:
        kills = oom_kills()
        out_of_memory = None if kills is None or self._oom_kills is None else kills > self._oom_kills
        server = self._spawner.exit_code if code == -signal.SIGKILL else None
        if server is not None:
            who, log = "the process that forks ranks", self._folder.log(rank)
            how = describe_signal(who, -server, out_of_memory, log) if server < 0 else f"{who} ended"
            return RankFailure(rank, code, f"{how}; its ranks ended with it", "server")
        return describe_failure(rank, code, self._folder.log(rank), self._log_begins[rank], out_of_memory, record)

    def ask(self) -> None:
        """Asks all ranks to save and stop, those too that somebody has stopped."""
        self._was_asked = True
        for process in self._processes.values():
            signal_process(process, signal.SIGTERM)
            signal_process(process, signal.SIGCONT)

    def end(self, grace_seconds: float) -> None:
        """Ends all ranks: gently, and by force after the grace."""
        if self._deadline is None:
            self._deadline = time.monotonic() + grace_seconds
            self.ask()

    def kill(self) -> None:
        """Ends every rank and what it started, at once. Raises `RunFailure` where one is still there `_DEATH_SECONDS` later."""
        self.was_killed |= self.alive()
        for process in self._processes.values():
            kill_session(process)
        deadline = time.monotonic() + _DEATH_SECONDS
        while staying := [rank for rank, process in self._processes.items() if process.poll() is None]:
            if time.monotonic() > deadline:
                rank, self._processes = staying[0], {}  # nobody waits for them again
                raise RunFailure(
                    f"rank {rank} has not ended {_DEATH_SECONDS:.0f} s after SIGKILL: it waits for a disk that does not answer, or "
                    f"somebody has frozen it, or a debugger has stopped it or the process that forks ranks; once that is over, the "
                    f"same command goes on"
                )
            time.sleep(_POLL_SECONDS)
