"""The slots on which a run may place its ranks: those of this machine and of others, less the ones that are lost.

A slot is a device of a machine, or where there are none the place of one process. The run takes its own slots first, then spare
ones; ranks follow the order of machines, so that neighbours in number stay neighbours.
"""

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from fourfold.rendezvous.server import StoreServer
from fourfold.supervise.messages import JOINED
from fourfold.supervise.remote import Machine

_MOST_SECONDS = 0.5
"""Longest time that counts as a machine's silence between two looks: whoever looks may have been held up too."""


class Slot(NamedTuple):
    """Slot `number` of a machine."""

    machine: int
    number: int


class Fleet:
    """All slots. `slots`, `spares`: of this machine, which leads. `count`: machines that the run takes; those from number `count`
    on are spare. A machine is lost when it has said nothing for `limit_seconds`."""

    def __init__(
        self, slots: Sequence[int], spares: Sequence[int], server: StoreServer, count: int, limit_seconds: float
    ) -> None:
        self._own = ([Slot(0, slot) for slot in slots], [Slot(0, slot) for slot in spares])
        self._server, self._count, self._limit = server, count, limit_seconds
        self._retired: dict[Slot, str] = {}
        self._asked: set[str] = set()
        self._polled = time.monotonic()
        self._read = 0
        self.machines: dict[int, Machine] = {}

    def poll(self) -> None:
        """Takes in what other machines report. Raises `RunFailure`."""
        now = time.monotonic()
        passed, self._polled = min(now - self._polled, _MOST_SECONDS), now
        joined = self._server.get(JOINED)
        for text in joined[self._read :].split(b","):  # what is there stays: numbers are appended
            if re.fullmatch(rb"[0-9]{1,6}", text) and int(text) and int(text) not in self.machines:
                self.machines[int(text)] = Machine(int(text), self._server, self._limit)
        self._read = len(joined)
        for machine in self.machines.values():
            machine.poll(passed)

    def usable(self) -> list[Slot]:
        """The slots that are not lost, in the order in which a run takes them."""
        own, spare = list(self._own[0]), list(self._own[1])
        for index, machine in sorted(self.machines.items()):
            if machine.report is None or machine.is_lost:
                continue
            slots = [Slot(index, number) for number in machine.report.slots]
            (own if index < self._count else spare).extend(slots)
            spare += [Slot(index, number) for number in machine.report.spares]
        return [slot for slot in (*own, *spare) if self._retired.get(slot) != self._life(slot.machine)]

    def _life(self, machine: int) -> str:
        report = self.machines[machine].report if machine else None
        return report.life if report is not None else "own"

    @property
    def refusal(self) -> str:
        """Why the store accepts no more connections; empty while it does."""
        return self._server.refusal

    @property
    def missing(self) -> list[str]:
        """The machines of the run that are not there."""
        absent = [f"machine {index}" for index in range(1, self._count) if index not in self.machines]
        return absent + [str(machine) for machine in self.machines.values() if machine.is_lost]

    def is_ready(self, slots: Sequence[Slot]) -> bool:
        """Whether the other machines among these slots could start ranks at once."""
        return all(self.machines[index].is_ready for index in {slot.machine for slot in slots} - {0})

    def could_join(self, slots: Sequence[Slot]) -> bool:
        """Whether the machines among these slots are heard, with what starts ranks; those that have ranks now too."""
        reports = [self.machines[index].report for index in {slot.machine for slot in slots} - {0}]
        return all(report is not None and (report.is_ready or report.seen) for report in reports)

    def retire(self, slot: Slot) -> None:
        """Takes a slot out until it is `restored`, or its machine's supervisor is started anew."""
        self._retired[slot] = self._life(slot.machine)

    def restore(self, slot: Slot) -> None:
        self._retired.pop(slot, None)

    @property
    def retired_here(self) -> list[int]:
        """Slots of this machine that were taken out."""
        return [slot.number for slot in self._retired if slot.machine == 0]

    def take_signals(self) -> list[int]:
        """Signals that asked supervisors of other machines to stop, each once."""
        found = [m.report for m in self.machines.values() if m.report is not None and m.report.signal]
        new = [report for report in found if report.life not in self._asked]
        self._asked |= {report.life for report in new}
        return [report.signal for report in new]

    def dismiss(self, exit_code: int, message: str, seconds: float) -> None:
        """Tells the other machines that the run has ended, and waits a little until they know."""
        told = {machine: machine.order("leave", exit_code=exit_code, message=message) for machine in self._there()}
        deadline = time.monotonic() + seconds
        while told and time.monotonic() < deadline:
            self.poll()
            told = {m: n for m, n in told.items() if m.report is not None and m.report.obeyed < n and not m.is_lost}
            time.sleep(0.02)

    def _there(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.report is not None and not machine.is_lost]


def placed(slots: Sequence[Slot], ranks: int) -> list[Slot]:
    """The slot of every rank: the first `ranks` slots, in the order of machines."""
    return sorted(slots[:ranks])
