"""Other machines as the supervisor that leads sees them: their reports, the orders to them, and their ranks of one generation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from fourfold.config import RunFailure
from fourfold.launch.failures import RankFailure
from fourfold.rendezvous.server import StoreServer
from fourfold.supervise.messages import ORDER, REPORT, Action, Order, Report, order_key, report_key, report_seconds
from fourfold.supervise.observation import Observation

_FRESH_REPORTS = 2.5
"""Reports that may be late before what the last one says is old."""
_LOST = -9
"""The exit code of a rank of which nothing is known any more."""


class Machine:
    """Another machine, for the whole launch. It is lost when it has said nothing for `limit_seconds`."""

    def __init__(self, index: int, server: StoreServer, limit_seconds: float) -> None:
        self.index = index
        self._server = server
        self._limit = limit_seconds
        self._order, self._ordered = 0, ""
        self._lives: list[str] = []
        self._text = b""
        self.report: Report | None = None
        self.silent = 0.0
        """Seconds since its last report."""

    def poll(self, passed: float) -> None:
        """Reads its report, `passed` seconds after the last time. Raises `RunFailure` where two supervisors claim to be it."""
        self.silent += passed
        text = self._server.get(report_key(self.index))
        if text == self._text:
            return
        self._text = text
        try:
            report = REPORT.validate_json(text)
        except ValidationError:
            return
        if self.report is None or report.life != self.report.life:
            if report.life in self._lives:
                raise RunFailure(
                    f"two supervisors ({report.host} and another) say that they are machine {self.index}; what works: another "
                    f"--node-rank (NODE_RANK) for each"
                )
            self._lives.append(report.life)
        self.report, self.silent = report, 0.0

    @property
    def is_fresh(self) -> bool:
        """Whether its last report says how it stands now."""
        return self.silent < _FRESH_REPORTS * report_seconds(self._limit)

    def is_missed(self, seconds: float) -> bool:
        """Whether it has not reported for so long, and is not lost yet."""
        return seconds < self.silent <= self._limit

    @property
    def is_lost(self) -> bool:
        return self.silent > self._limit

    @property
    def is_ready(self) -> bool:
        """Whether it could start ranks at once: those before have ended, and it obeyed."""
        report = self.report
        if report is None or self.is_lost or not report.is_ready:
            return False
        return report.life != self._ordered or report.obeyed >= self._order

    def order(self, action: Action, **values: Any) -> int:
        """Sends an order to the supervisor that lives there now; its number."""
        self._order += 1
        self._ordered = self.report.life if self.report is not None else ""
        order = Order(self._order, self._ordered, action, **values)
        self._server.set(order_key(self.index), ORDER.dump_json(order).decode())
        return self._order

    def __str__(self) -> str:
        return f"machine {self.index} ({self.report.host if self.report is not None else 'unknown'})"


class RemoteRanks:
    """The ranks of one generation on another machine, with the methods of `LocalRanks`."""

    def __init__(
        self, machine: Machine, slots: Mapping[int, int], world_size: int, generation: int, fence: int
    ) -> None:
        self.machine = machine
        self.exit_codes: dict[int, int] = {}
        self.failures: list[RankFailure] = []
        self.was_killed = self.is_ending = False
        self._life = machine.report.life if machine.report is not None else ""
        self._ranks = tuple(slots)
        self._taken = 0
        self._started = machine.order(
            "start", ranks=dict(slots), world_size=world_size, generation=generation, fence=fence
        )

    def alive(self) -> bool:
        return len(self.exit_codes) < len(self._ranks)

    def collect(self) -> None:
        """Notes ranks that have ended, or are lost with their machine."""
        report = self.machine.report
        if report is None or self.machine.is_lost or report.life != self._life:
            self._lose()
        elif report.obeyed >= self._started and self.alive():
            self.exit_codes = dict(report.exit_codes)
            self.failures += report.failures[self._taken :]
            self._taken = len(report.failures)

    def _lose(self) -> None:
        if not self.alive():
            return
        lost = [rank for rank in self._ranks if rank not in self.exit_codes]
        named = f"rank{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))}"
        why = f"has not answered for {self.machine.silent:.1f} s" if self.machine.is_lost else "began anew"
        self.exit_codes |= dict.fromkeys(lost, _LOST)
        if not (self.was_killed or self.is_ending):
            self.failures.append(RankFailure(lost[0], 1, f"{self.machine} {why}: {named} lost", "machine"))

    def observe(self) -> dict[int, Observation]:
        report = self.machine.report
        if report is None or report.obeyed < self._started:
            return dict.fromkeys(self._ranks, Observation(is_fresh=False))
        seen = {rank: report.seen.get(rank, Observation(is_fresh=False)) for rank in self._ranks}
        return seen if self.machine.is_fresh else {rank: replace(each, is_fresh=False) for rank, each in seen.items()}

    def ask_for_calls(self) -> int:
        """Asks for the ranks' calls; the number of the report's `obeyed` from which on they are there."""
        report = self.machine.report
        hears = report is not None and report.obeyed >= self._started and self.machine.is_fresh
        return self.machine.order("calls") if hears else 0

    def ask(self) -> None:
        if self.alive():
            self.machine.order("ask")

    def end(self, grace_seconds: float) -> None:
        if not self.is_ending and self.alive():
            self.is_ending = True
            self.machine.order("end", grace_seconds=grace_seconds)

    def kill(self) -> None:
        if self.alive() and not self.was_killed:
            self.was_killed = True
            self.machine.order("kill")
