"""Watches the ranks of a generation and judges their failures: which rank is at fault, and whether all are to start again.

A run is started again as long as it gets on, and three times where it does not.
"""

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fourfold.config import RunFailure
from fourfold.config.schema import FaultsSection
from fourfold.launch.failures import RankFailure, summarize
from fourfold.launch.kept_files import KeptFiles
from fourfold.launch.processes import FINISHED, STOPPED
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.fence import newest_fence
from fourfold.runtime.progress import STARTING
from fourfold.supervise.blame import Blame
from fourfold.supervise.fleet import Fleet
from fourfold.supervise.generation import Generation
from fourfold.supervise.places import Places
from fourfold.supervise.signals import LaunchOutcome
from fourfold.supervise.watch import Watch
from fourfold.train.metrics import append_event

_POLL_SECONDS = 0.02
_MACHINE_SECONDS = 1e-4
"""Between two looks, for each other machine: a look at all of them takes the leader about half as long."""
_TICK_SECONDS = 0.05
_ECHO_SECONDS = 1.0
"""How long a rank that lost its connection is taken for an echo of a failure still to come; where a machine has said nothing since,
until that is judged."""
_FENCE_SECONDS = 1.0
_GONE_SECONDS = 5.0
"""How long the run's folder may be away: a network's file system may lose it for a moment."""


@dataclass
class RestartBudget:
    """Counts failures since the last progress.

    A fault that recurs at one step is the run's own: after `faults.attempts` failures in a row there, the run stops. Failures at
    changing steps come from outside, and the run may always be started again if a newer checkpoint was saved since; without
    one `faults.restarts` times in a row.
    """

    faults: FaultsSection
    first_cause: str = ""
    """Message of the first failure at this step; later ones may be its echoes."""
    at_step: int | None = 0
    """The step at which the run fails; None while its ranks start."""
    failures: int = 0
    """In a row at one step."""
    since_saved: int = 0
    """Restarts since the newest checkpoint."""
    _saved: int | None = None

    def allows(self, step: int | None, saved: int, message: str) -> bool:
        """Counts a failure at `step`, or while ranks start (None); whether the run may start again. `saved`: step of the newest
        checkpoint, 0 for none."""
        same = self.failures > 0 and step == self.at_step
        self.failures = self.failures + 1 if same else 1
        self.first_cause = self.first_cause if same else message
        self.at_step = step
        self.since_saved = self.since_saved + 1 if saved == self._saved else 1
        self._saved = saved
        return self.failures < self.faults.attempts and self.since_saved <= self.faults.restarts

    def forget(self) -> None:
        """The failures so far had a cause that is gone."""
        self.failures = self.since_saved = 0

    def why_stopped(self, message: str) -> str:
        """The first cause, and how often it was tried; for a failure that was not repeated its own message alone."""
        if self.failures >= self.faults.attempts > 1:
            again = "" if message == self.first_cause else f"; the last time: {message.splitlines()[0]}"
            where = "while it started" if self.at_step is None else f"at step {self.at_step}"
            return (
                f"{self.first_cause}\nthe run failed {where} {self.failures} times in a row and was not started "
                f"again (faults.attempts = {self.faults.attempts}){again}"
            )
        if self.since_saved > self.faults.restarts > 0:
            return (
                f"{message}\nthe run was started again {self.faults.restarts} times without a newer checkpoint (faults.restarts); "
                f"what helps: checkpoint.every_steps smaller than the steps between two failures"
            )
        return message


class Judge:
    """Watches one generation of ranks after another, and says what follows. `received`: the signals of this process, which grow.
    `last_message`: of the failure before which the present generation was started; `fence`: its number."""

    def __init__(
        self,
        folder: RunFolder,
        received: list[int],
        faults: FaultsSection,
        newest: Callable[[], int],
        watch: Watch | None,
        on_tick: Callable[[], None],
        on_notice: Callable[[str], None],
        grace_seconds: float,
        fleet: Fleet,
        kept: KeptFiles,
    ) -> None:
        self._received = received
        self._elsewhere: list[int] = []
        self.newest = newest
        self.last_message = ""
        self._folder = folder
        self._handled = 0
        self._told_refusal = False
        self._budget = RestartBudget(faults)
        self._watch = watch
        self._on_tick = on_tick
        self._on_notice = on_notice
        self._grace_seconds = grace_seconds
        self._fleet, self._kept = fleet, kept
        self._ticked = self._asked = 0.0
        self.fence = 0
        self._missed = 0.0 if folder.run_file.exists() else math.inf

    @property
    def received(self) -> list[int]:
        """The signals so far. A request that reaches several supervisors, as Slurm's does, is one."""
        return self._received or self._elsewhere[:1]

    def tick(self) -> None:
        """Sleeps a little, listens to other machines, and lets the display go on."""
        self._fleet.poll()
        self._elsewhere += self._fleet.take_signals()
        if self._fleet.refusal and not self._told_refusal:
            self._told_refusal = True
            self._on_notice(self._fleet.refusal)
            self.note("wait", message=self._fleet.refusal)
        if time.monotonic() - self._ticked >= _TICK_SECONDS:
            self._on_tick()
            self._ticked = time.monotonic()
        time.sleep(max(_POLL_SECONDS, _MACHINE_SECONDS * len(self._fleet.machines)))

    def blame(self, blame: Blame | None) -> None:
        """The run's programs are others from now on."""
        if blame is not None and self._watch is not None:
            self._watch.blame = blame

    def watch(self, generation: Generation, number: int, places: Places) -> LaunchOutcome | None:
        """Returns when all ranks of a generation have ended; None: start the next one."""
        restarts, grows, echo_since = False, False, 0.0
        if self._watch is not None:
            self._watch.begin()
        while generation.alive():
            self._pass_signals_on(generation)
            generation.collect()
            if (lost := self._lost_folder(generation)) is not None:
                return lost
            if (other := self._successor()) > self.fence:
                generation.kill()
                return LaunchOutcome(
                    1,
                    f"{self._folder.path}: another fourfold train took this run over (start {other}, this is {self.fence}) and "
                    f"alone may save, so this one ended; let one at a time use a folder",
                )
            if self._watch is not None and not generation.failures:
                self._look(self._watch, generation)
            if generation.failures and not restarts and not generation.is_ending:
                echo_since = echo_since or time.monotonic()
                is_known = any(not failure.only_noticed for failure in generation.failures)
                waited = time.monotonic() - echo_since
                if is_known or (waited > _ECHO_SECONDS and not generation.misses_somebody(waited)):
                    restarts = self._judge(generation, number, places)
                    if restarts:
                        generation.kill()
                    else:
                        generation.end(self._grace_seconds)
            if not (grows or self.received or generation.failures) and places.could_grow(self.newest):
                grows = True
                generation.ask()
            self.tick()
        generation.collect()
        self._on_tick()
        if generation.failures and (lost := self._lost_folder(generation)) is not None:
            return lost
        if generation.failures and not restarts and not generation.is_ending:
            restarts = self._judge(generation, number, places)
        if grows and not (restarts or self.received) and set(generation.exit_codes.values()) == {STOPPED}:
            self.note("restart", step=self.newest(), generation=number + 1)
            return None
        return None if restarts else self._outcome(generation)

    def _lost_folder(self, generation: Generation) -> LaunchOutcome | None:
        """Kills all ranks where the run's folder is gone: they would go on to the end, or be asked for reasons that they could not
        write. None: it is there."""
        if self._folder_gone_for() <= (0.0 if generation.failures else _GONE_SECONDS):
            return None
        generation.kill()
        return LaunchOutcome(
            1,
            f"{self._folder.path}: the run's folder was removed or renamed while the run went on, which could save "
            f"nothing there; put it back in its place and give the same command",
        )

    def _folder_gone_for(self) -> float:
        """Seconds since a look first missed the run's folder, and all since; 0 while it is there. Between two looks nobody knows:
        this process may have been held up."""
        try:
            self._folder.run_file.stat()
        except (FileNotFoundError, NotADirectoryError):
            if self._missed < math.inf and self._kept.are_there:
                self.keep()
                return 0.0
            self._missed = self._missed or time.monotonic()
            return time.monotonic() - self._missed
        except OSError:  # another reason not to see it, which may pass
            pass
        self._missed = 0.0
        return 0.0

    def _successor(self) -> int:
        """The number of those who started ranks of this run last, looked up once a second: the lock may be deleted, or the file
        system without locks."""
        if time.monotonic() - self._asked > _FENCE_SECONDS:
            self._asked = time.monotonic()
            return newest_fence(self._folder.path)
        return 0

    def _pass_signals_on(self, generation: Generation) -> None:
        for number in self.received[self._handled :]:
            self._handled += 1
            if self._handled == 1:
                name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
                self._on_notice(f"{name}: stopping after this step, saving (once more: end at once, unsaved)")
                generation.ask()
            else:
                self._on_notice("ending at once")
                generation.kill()

    def _look(self, watch: Watch, generation: Generation) -> None:
        """Takes note of a rank that no longer gets on, and of slow ones."""
        found = watch.look(generation)
        if found is not None:
            generation.failures.append(
                RankFailure(found.rank, 1, found.message, found.cause, found.instruction, found.still_seconds)
            )
            if self.received:  # nobody can save any more
                generation.kill()
        for slow in watch.stragglers(generation):
            self.note("straggler", rank=slow.rank, ratio=slow.ratio, seconds=slow.seconds)

    def _judge(self, generation: Generation, number: int, places: Places) -> bool:
        """Writes down why a generation failed; whether the next one is to start."""
        if self.received:
            return False
        cause = _cause(generation.failures)
        self.last_message = cause.message
        seen = generation.observe()
        place = seen[cause.rank].position if cause.rank < len(seen) and seen[cause.rank].position.pid else None
        saved = self.newest()
        step, index = (place.step, place.at) if place is not None and place.kind != STARTING else (None, 0)
        again = self._budget.allows(step, saved, cause.message) and not cause.is_final
        where: dict[str, object] = {"step": step if step is not None else saved, "index": index}
        if cause.instruction:
            where = {**where, "instruction": cause.instruction}
        if cause.still_seconds:
            where = {**where, "stood_still_seconds": cause.still_seconds}
        self.note("failure", **where, rank=cause.rank, cause=cause.cause, message=cause.message, generation=number)
        if again:
            alone = len({failure.rank for failure in generation.failures if not failure.only_noticed}) == 1
            starts = alone and cause.cause not in ("machine", "server") and step is None
            if places.judge(generation.slots[cause.rank], starts, cause.message):
                self._budget.forget()
            self.note("restart", step=saved, generation=number + 1)
        return again

    def keep(self, is_written: bool = False) -> None:
        """Puts back the files by which ranks start where somebody changed them, and says so. `is_written`: the launch itself has
        written them. Raises `RunFailure`."""
        if is_written:
            self._kept.take()
        is_replaced = newest_fence(self._folder.path) > self.fence  # what stands there is of a later launch
        for text in self._kept.put_back() if self._missed < math.inf and not is_replaced else ():
            self.note("restore", message=text)

    def note(self, name: str, **values: object) -> None:
        """Writes an event of the run."""
        with suppress(RunFailure, OSError):  # a full disk: the run's end says so
            append_event(self._folder.path, name, **values)

    def _outcome(self, generation: Generation) -> LaunchOutcome:
        received = self.received
        if len(received) > 1 and generation.was_killed:
            return LaunchOutcome(128 + received[0], killed=True)
        failures = [failure for failure in generation.failures if not (received and failure.only_noticed)]
        if failures:
            message, exit_code = summarize(failures)
            return LaunchOutcome(exit_code, message if received else self._budget.why_stopped(message))
        if all(code == FINISHED for code in generation.exit_codes.values()):
            return LaunchOutcome(0)
        if not received:
            self._on_notice("a rank got SIGTERM or SIGINT from outside, which all take for a request to save and stop")
        return LaunchOutcome(128 + (received[0] if received else signal.SIGTERM))


def _cause(failures: Sequence[RankFailure]) -> RankFailure:
    """The first failure that would come again, else the first that is no echo of another."""
    final = next((failure for failure in failures if failure.is_final), None)
    return final or next((failure for failure in failures if not failure.only_noticed), failures[0])
