"""The supervisor: starts the ranks of this machine, watches them, and starts them again from the newest checkpoint."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from fourfold.config import RunFailure
from fourfold.config.errors import open_files_advice
from fourfold.config.schema import FaultsSection
from fourfold.launch.failures import RankFailure, summarize
from fourfold.launch.processes import FINISHED, LocalRanks
from fourfold.launch.rank_process import CommandSpawner, ForkServer, Spawner
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.server import StoreServer, loopback_interface
from fourfold.runtime.progress import ENDED, Position, clear_positions, read_positions
from fourfold.supervise.budget import RestartBudget
from fourfold.supervise.watch import Watch
from fourfold.train.metrics import append_event

_POLL_SECONDS = 0.02
_TICK_SECONDS = 0.05
_ECHO_SECONDS = 1.0
"""How long a rank that lost its connection is taken for an echo of a failure still to come."""
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


def supervise(
    folder: RunFolder,
    ranks: int,
    threads: int,
    faults: FaultsSection,
    newest: Callable[[], int] = lambda: 0,
    watch: Watch | None = None,
    on_tick: Callable[[], None] = lambda: None,
    on_notice: Callable[[str], None] = lambda text: None,
    command: Sequence[str] | None = None,
    grace_seconds: float = 10.0,
) -> LaunchOutcome:
    """Runs all ranks until the run has finished, was stopped, or has failed too often. Called from the main thread.

    `newest`: the step of the newest checkpoint. `watch`: finds ranks that no longer get on. `on_tick` is called some 20 times a
    second, `on_notice` with a line to show. `command`: a program that is a rank, called with the run's folder, in place of
    `fourfold.train`. The first SIGINT, SIGTERM or SIGHUP is passed on once, as SIGTERM; the second kills. A failure that ends the
    run ends the other ranks: SIGTERM, and SIGKILL `grace_seconds` later. Raises `RunFailure` where a process cannot be started.
    """
    stop = _Stop()
    with stop.installed(), ExitStack() as cleanup:
        spawner = CommandSpawner(command, folder) if command is not None else ForkServer(folder, threads)
        cleanup.callback(spawner.close)
        supervisor = _Supervisor(
            folder, stop.received, RestartBudget(faults), newest, watch, on_tick, on_notice, grace_seconds
        )
        supervisor.note("launch", ranks=ranks)
        store = StoreServer()
        cleanup.callback(store.close)
        rendezvous = {**loopback_interface(), **store.environment()}
        generation = 0
        while True:
            while not _is_ready(spawner, folder, ranks):
                supervisor.tick()
                if len(stop.received) > 1:
                    return LaunchOutcome(128 + stop.received[0], killed=True)
            if stop.received and generation:
                return LaunchOutcome(128 + stop.received[0])
            group = LocalRanks(folder, spawner, lambda rank: not _in_mid_run(folder, rank))
            with ExitStack() as processes:
                processes.callback(group.kill)
                group.start(ranks, threads, generation, rendezvous)
                if not generation:
                    store.start()  # a thread: after the forks
                outcome = supervisor.watch(group, generation)
            if outcome is not None:
                return outcome
            generation += 1


class _Supervisor:
    """Watches one generation of ranks after another. `received`: the signals so far."""

    def __init__(
        self,
        folder: RunFolder,
        received: list[int],
        budget: RestartBudget,
        newest: Callable[[], int],
        watch: Watch | None,
        on_tick: Callable[[], None],
        on_notice: Callable[[str], None],
        grace_seconds: float,
    ) -> None:
        self._folder = folder
        self._received = received
        self._handled = 0
        self._budget = budget
        self._newest = newest
        self._watch = watch
        self._on_tick = on_tick
        self._on_notice = on_notice
        self._grace_seconds = grace_seconds
        self._ticked = 0.0

    def tick(self) -> None:
        """Sleeps a little, and lets the display go on."""
        if time.monotonic() - self._ticked >= _TICK_SECONDS:
            self._on_tick()
            self._ticked = time.monotonic()
        time.sleep(_POLL_SECONDS)

    def watch(self, group: LocalRanks, generation: int) -> LaunchOutcome | None:
        """Returns when all ranks of a generation have ended; None: start the next one."""
        restarts, echo_since = False, 0.0
        if self._watch is not None:
            self._watch.begin(len(group.pids))
        while group.alive():
            self._pass_signals_on(group)
            group.collect()
            if self._watch is not None and not group.failures:
                self._look(self._watch, group)
            if group.failures and not restarts and not group.is_ending:
                echo_since = echo_since or time.monotonic()
                is_known = any(not failure.only_noticed for failure in group.failures)
                if is_known or time.monotonic() - echo_since > _ECHO_SECONDS:
                    restarts = self._judge(group, generation)
                    if restarts:
                        group.kill()
                    else:
                        group.end(self._grace_seconds)
            self.tick()
        group.collect()
        self._on_tick()
        if group.failures and not restarts and not group.is_ending:
            restarts = self._judge(group, generation)
        return None if restarts else self._outcome(group)

    def _pass_signals_on(self, group: LocalRanks) -> None:
        for number in self._received[self._handled :]:
            self._handled += 1
            if self._handled == 1:
                name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
                self._on_notice(f"{name}: stopping after this step, saving (once more: end at once, unsaved)")
                group.ask()
            else:
                self._on_notice("ending at once")
                group.kill()

    def _look(self, watch: Watch, group: LocalRanks) -> None:
        """Takes note of a rank that no longer gets on, and of slow ones."""
        found = watch.look(group.pids)
        if found is not None:
            group.failures.append(
                RankFailure(found.rank, 1, found.message, found.cause, found.instruction, found.still_seconds)
            )
            if self._received:  # nobody can save any more
                group.kill()
        for slow in watch.stragglers():
            self.note("straggler", rank=slow.rank, ratio=slow.ratio, seconds=slow.seconds)

    def _judge(self, group: LocalRanks, generation: int) -> bool:
        """Writes down why a generation failed; whether the next one is to start."""
        if self._received:
            return False
        cause = _cause(group.failures)
        place = _position(self._folder, cause.rank)
        step = place.step if place is not None else -1
        saved = self._newest()
        again = self._budget.allows(step, saved, cause.message) and not cause.is_final
        where: dict[str, object] = {"step": step, "index": place.counter} if place is not None else {}
        if cause.instruction:
            where = {**where, "instruction": cause.instruction}
        if cause.still_seconds:
            where = {**where, "stood_still_seconds": cause.still_seconds}
        self.note("failure", **where, rank=cause.rank, cause=cause.cause, message=cause.message, generation=generation)
        if again:
            self.note("restart", step=saved, generation=generation + 1)
        return again

    def note(self, name: str, **values: object) -> None:
        """Writes an event of the run."""
        with suppress(RunFailure, OSError):  # a full disk: the run's end says so
            append_event(self._folder.path, name, **values)

    def _outcome(self, group: LocalRanks) -> LaunchOutcome:
        received = self._received
        if len(received) > 1 and group.was_killed:
            return LaunchOutcome(128 + received[0], killed=True)
        failures = [failure for failure in group.failures if not (received and failure.only_noticed)]
        if failures:
            message, exit_code = summarize(failures)
            return LaunchOutcome(exit_code, message if received else self._budget.why_stopped(message))
        if all(code == FINISHED for code in group.exit_codes.values()):
            return LaunchOutcome(0)
        return LaunchOutcome(128 + (received[0] if received else signal.SIGTERM))


def _is_ready(spawner: Spawner, folder: RunFolder, ranks: int) -> bool:
    """Whether ranks can be started at once, none of which has reported yet. Raises `RunFailure`."""
    try:
        if not spawner.ready():
            return False
        clear_positions(folder.path, ranks)
    except OSError as error:
        works = open_files_advice(error) or "free space there, or name another folder with --out"
        raise RunFailure(f"{folder.path}: no rank can be started ({error.strerror}); {works}") from None
    return True


def _cause(failures: Sequence[RankFailure]) -> RankFailure:
    """The first failure that would come again, else the first that is no echo of another."""
    final = next((failure for failure in failures if failure.is_final), None)
    return final or next((failure for failure in failures if not failure.only_noticed), failures[0])


def _position(folder: RunFolder, rank: int) -> Position | None:
    """Where a rank was last seen in this generation."""
    positions = read_positions(folder.path)
    return positions[rank] if rank < len(positions) and positions[rank].pid else None


def _in_mid_run(folder: RunFolder, rank: int) -> bool:
    """Whether a rank has begun and not come to the end."""
    place = _position(folder, rank)
    return place is not None and place.kind != ENDED
