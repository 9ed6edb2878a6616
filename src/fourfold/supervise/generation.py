"""All ranks of one generation, wherever they run, as one thing to watch and to end."""

import time
from collections.abc import Sequence
from pathlib import Path

from fourfold.launch.failures import RankFailure
from fourfold.launch.processes import LocalRanks
from fourfold.supervise.fleet import Slot
from fourfold.supervise.observation import Observation, observe
from fourfold.supervise.remote import RemoteRanks
from fourfold.supervise.tracebacks import read_tracebacks

_CALLS_SECONDS = 1.0


class Generation:
    """The ranks of this machine, and those of others. `slots`: of every rank. `failures`: in the order in which they were seen."""

    def __init__(self, folder: Path, slots: Sequence[Slot], local: LocalRanks, others: Sequence[RemoteRanks]) -> None:
        self._folder, self.slots = folder, slots
        self._local, self._others = local, others
        self._parts: tuple[LocalRanks | RemoteRanks, ...] = (local, *others)
        self._taken = [0] * len(self._parts)
        self.failures: list[RankFailure] = []

    @property
    def exit_codes(self) -> dict[int, int]:
        return {rank: code for part in self._parts for rank, code in part.exit_codes.items()}

    @property
    def was_killed(self) -> bool:
        return any(part.was_killed for part in self._parts)

    @property
    def is_ending(self) -> bool:
        return self._local.is_ending or any(part.is_ending for part in self._others)

    def alive(self) -> bool:
        return any(part.alive() for part in self._parts)

    def misses_somebody(self, seconds: float) -> bool:
        """Whether a machine with ranks that should live has said nothing for so long, and is not yet given up."""
        return any(part.alive() and part.machine.is_missed(seconds) for part in self._others)

    def collect(self) -> None:
        """Notes ranks that have ended."""
        for number, part in enumerate(self._parts):
            part.collect()
            self.failures += part.failures[self._taken[number] :]
            self._taken[number] = len(part.failures)

    def ask(self) -> None:
        """Asks all ranks to save and stop."""
        for part in self._parts:
            part.ask()

    def end(self, grace_seconds: float) -> None:
        """Ends all ranks: gently, and by force after the grace."""
        for part in self._parts:
            part.end(grace_seconds)

    def kill(self) -> None:
        """Ends all ranks: those of this machine have ended when it returns, the others when they no longer are `alive`."""
        for part in reversed(self._parts):
            part.kill()

    def observe(self) -> list[Observation]:
        """Every rank as it is seen now, by rank."""
        found = observe(self._folder, self._local.machine, self._local.pids)
        for part in self._others:
            found |= part.observe()
        return [found[rank] for rank in sorted(found)]

    def tracebacks(self) -> dict[int, tuple[str, ...]]:
        """By rank: its calls, innermost first; without ranks that did not answer."""
        wanted = [(part, part.ask_for_calls()) for part in self._others]
        found = read_tracebacks(self._folder, self._local.pids)
        deadline = time.monotonic() + (_CALLS_SECONDS if wanted else 0.0)
        for part, number in wanted:
            machine = part.machine
            while number and time.monotonic() < deadline and (machine.report is None or machine.report.obeyed < number):
                time.sleep(0.02)
                machine.poll(0.02)
            if machine.report is not None:
                found |= machine.report.calls
        return found
