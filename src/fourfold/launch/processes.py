"""One process a rank on this machine: started together, watched, stopped together. None outlives the launcher."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from fourfold.config import RunFailure
from fourfold.config.errors import open_files_advice
from fourfold.launch.failures import RankFailure, describe_failure, summarize
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.server import StoreServer, loopback_interface

WORKER = (sys.executable, "-m", "fourfold.train.worker")
FINISHED, STOPPED = 0, 3
"""Exit codes of a worker: it came to the end; it stopped by request, after saving."""

_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class LaunchOutcome:
    """How a launch ended. `exit_code`: 0 finished, 1 or 2 failed, 128 + signal stopped. `message`: the failure's."""

    exit_code: int
    message: str = ""
    killed: bool = False

    @property
    def stopped(self) -> bool:
        return self.exit_code > 128


@dataclass
class _Stop:
    """The signals that the launcher received."""

    received: list[int] = field(default_factory=list)

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Takes the signals that end a program, except where they are ignored (nohup)."""
        before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
        taken = [number for number, handler in before.items() if handler != signal.SIG_IGN]
        try:
            for number in taken:
                signal.signal(number, self.handle)
            yield
        finally:
            for number in taken:
                signal.signal(number, before[number] or signal.SIG_DFL)


def launch_local(
    folder: RunFolder,
    ranks: int,
    threads: int,
    on_tick: Callable[[], None] = lambda: None,
    on_stop: Callable[[str], None] = lambda text: None,
    command: Sequence[str] = WORKER,
    grace_seconds: float = 10.0,
) -> LaunchOutcome:
    """Runs `command OUT` once a rank and returns when all have ended. Called from the main thread.

    `on_tick` is called some 20 times a second, `on_stop` with a line to show when a signal asks the run to stop. The first
    SIGINT, SIGTERM or SIGHUP is passed on once, as SIGTERM; the second kills. A rank that fails ends the others: SIGTERM,
    and SIGKILL `grace_seconds` later. Raises `RunFailure` where a process cannot be started.
    """
    stop = _Stop()
    with stop.installed(), ExitStack() as cleanup:
        group = _Ranks(folder, grace_seconds)
        cleanup.callback(group.kill)
        group.start(ranks, threads, command)
        handled = 0
        while group.alive():
            for number in stop.received[handled:]:
                handled += 1
                if handled == 1:
                    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
                    on_stop(f"{name}: stopping after this step, saving (once more: end at once, unsaved)")
                    group.send(signal.SIGTERM)
                else:
                    on_stop("ending at once")
                    group.kill()
            group.collect()
            on_tick()
            time.sleep(_POLL_SECONDS)
        group.collect()
        on_tick()
    return _outcome(group, stop.received)


def _outcome(group: "_Ranks", received: list[int]) -> LaunchOutcome:
    if len(received) > 1 and group.was_killed:
        return LaunchOutcome(128 + received[0], killed=True)
    failures = [failure for failure in group.failures if not (received and failure.only_noticed)]
    if failures:
        message, exit_code = summarize(failures)
        return LaunchOutcome(exit_code, message)
    if all(code == FINISHED for code in group.exit_codes.values()):
        return LaunchOutcome(0)
    return LaunchOutcome(128 + (received[0] if received else signal.SIGTERM))


class _Ranks:
    """The processes. Each leads a session of its own, so that a terminal's Ctrl-C reaches the launcher alone."""

    def __init__(self, folder: RunFolder, grace_seconds: float) -> None:
        self.exit_codes: dict[int, int] = {}
        self.failures: list[RankFailure] = []
        self.was_killed = False
        self._was_asked = False
        self._folder = folder
        self._grace_seconds = grace_seconds
        self._processes: list[subprocess.Popen[bytes]] = []
        self._deadline: float | None = None
        self._store: StoreServer | None = None

    def start(self, ranks: int, threads: int, command: Sequence[str]) -> None:
        self._store = StoreServer()
        shared = {**os.environ, **loopback_interface(), **self._store.environment()}
        for rank in range(ranks):
            environment = {
                **shared,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "OMP_NUM_THREADS": str(threads),
                "FOURFOLD_PARENT": str(os.getpid()),
                "PYTHONUNBUFFERED": "1",
            }
            try:
                with open(self._folder.log(rank), "wb") as log:
                    self._processes.append(
                        subprocess.Popen(
                            [*command, str(self._folder.path)],
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                            preexec_fn=_die_with_parent,
                        )
                    )
            except OSError as error:
                works = open_files_advice(error) or "use fewer ranks with --ranks, or free memory and disk"
                raise RunFailure(f"rank {rank} of {ranks} cannot be started ({error}); {works}") from None
        self._store.start()

    def alive(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def collect(self) -> None:
        """Notes ranks that have ended; the first that failed ends the others, gently and after the grace by force."""
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is None or rank in self.exit_codes:
                continue
            self.exit_codes[rank] = code
            ended_by_us = self.was_killed or (self._was_asked and code == -signal.SIGTERM)
            if code not in (FINISHED, STOPPED) and not ended_by_us:
                self.failures.append(describe_failure(rank, code, self._folder.log(rank)))
        if self.failures and self._deadline is None:
            self._deadline = time.monotonic() + self._grace_seconds
            self.send(signal.SIGTERM)
        elif self._deadline is not None and time.monotonic() > self._deadline:
            self.kill()

    def send(self, number: int) -> None:
        self._was_asked = True
        for process in self._processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.send_signal(number)

    def kill(self) -> None:
        """Ends every rank and what it started, at once."""
        for process in self._processes:
            if process.poll() is None:
                self.was_killed = True
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        if self._store is not None:
            self._store.close()
            self._store = None


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """In the child, before it runs: the kernel kills it when the launcher dies, however that dies."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
