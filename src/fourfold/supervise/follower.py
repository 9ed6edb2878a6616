"""The supervisor of another machine: starts, watches and ends its ranks as the one that leads orders, and reports to it.

When the leader does not answer for `faults.stall_seconds`, it is cut off, and ends its ranks itself: others may have taken their
place by now. It goes on trying to reach the leader, and joins in again.
"""

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace

from pydantic import ValidationError

from fourfold.config import RunFailure
from fourfold.config.errors import raise_file_limit
from fourfold.config.own_code import own_code
from fourfold.launch.external import Member
from fourfold.launch.failures import RankFailure
from fourfold.launch.processes import LocalRanks
from fourfold.launch.rank_process import ForkServer
from fourfold.launch.rendezvous_file import find_store
from fourfold.launch.run_folder import LOGS, RunFolder
from fourfold.launch.shares import first_slot
from fourfold.rendezvous.addresses import loopback
from fourfold.rendezvous.connection import SECRET, BrokenFrame, Connection
from fourfold.rendezvous.values import OK
from fourfold.supervise.messages import JOINED, ORDER, REPORT, Order, Report, order_key, report_key, report_seconds
from fourfold.supervise.observation import observe
from fourfold.supervise.signals import LaunchOutcome, StopRequests
from fourfold.supervise.supervisor import RESTARTED_SECONDS, in_mid_run, kept_memory, prepare_start, reach
from fourfold.supervise.tracebacks import read_tracebacks

_POLL_SECONDS, _LOOK_SECONDS = 0.02, 0.1
_TRY_SECONDS = 1.0
_ORDER_SECONDS = 60.0
"""How long a request for the next order waits at the store: then it is made again."""


def follow(
    folder: RunFolder,
    member: Member,
    token: str,
    slots: Callable[[], int],
    spares: int,
    threads: Callable[[int], int],
    silence_seconds: float,
    patience: float,
    on_notice: Callable[[str], None],
    keeps_memory: bool = False,
) -> LaunchOutcome:
    """Takes part in the launch that `token` names until its leader says that it has ended. Called from the main thread.

    `slots`: how many ranks this machine runs, asked once the run's folder is there; `spares` more are spare. `threads`: of each of
    so many ranks. `silence_seconds`: without the leader, after which its ranks end; `patience`: seconds to wait for it.
    `keeps_memory`: as in `supervise`. Raises `RunFailure`.
    """
    raise_file_limit()
    own_code()  # as in `supervise`
    stop = StopRequests()
    with stop.installed(), ExitStack() as cleanup:
        deadline = time.monotonic() + patience
        while find_store(folder, token) is None:
            if stop.received:
                return LaunchOutcome(128 + stop.received[0])
            if time.monotonic() > deadline:
                raise RunFailure(
                    f"{folder.path}: {member} waited {patience:.0f} s for number 0 to say in .rendezvous where the "
                    f"run's store is; see what that one says, put --out on a disk that all machines share, start all as one user "
                    f"(who alone may read that file), or raise run.timeout_seconds"
                )
            time.sleep(_TRY_SECONDS / 10)
        count = slots()
        each = threads(count + spares)
        memory = cleanup.enter_context(kept_memory(on_notice)) if keeps_memory else None
        spawner = ForkServer(folder, memory=memory.descriptor if memory is not None else None)
        cleanup.callback(spawner.close)
        first = first_slot(member)
        follower = _Follower(folder, member, token, spawner, each, silence_seconds, stop.received)
        follower.report = Report(
            0,
            secrets.token_hex(8),
            socket.gethostname(),
            tuple(range(first, first + count)),
            tuple(range(first + count, first + count + spares)),
        )
        cleanup.callback(follower.kill)
        return follower.run(min(patience, RESTARTED_SECONDS) if member.is_restarted else patience, on_notice)


class _Follower:
    """One supervisor that follows. `limit`: seconds without the leader after which it ends its ranks."""

    report: Report

    def __init__(
        self,
        folder: RunFolder,
        member: Member,
        token: str,
        spawner: ForkServer,
        threads: int,
        limit: float,
        received: Sequence[int],
    ) -> None:
        self._folder, self._member, self._token = folder, member, token
        self._spawner, self._threads, self._limit = spawner, threads, limit
        self._received = received
        self._connection: Connection | None = None
        self._store: tuple[int, bytes] | None = None
        self._asked: Future[list[bytes]] | None = None
        self._order = b""
        self._told: Report | None = None
        self._ranks: LocalRanks | None = None
        self._heard = time.monotonic()
        self._has_ended = False
        self._failures: list[RankFailure] = []

    def run(self, patience: float, on_notice: Callable[[str], None]) -> LaunchOutcome:
        looked = reported = 0.0
        is_cut_off = False
        while True:
            if len(self._received) > 1:
                self.kill()
                return LaunchOutcome(128 + self._received[0], killed=True)
            if self._ranks is not None:
                self._ranks.collect()
            order = self._next_order()
            if order is not None and order.action == "leave":
                self.kill()
                self.report = replace(self.report, obeyed=order.number)
                self._tell()
                return LaunchOutcome(order.exit_code, order.message)
            if order is not None:
                self._obey(order)
            now = time.monotonic()
            if order is not None or now - looked >= _LOOK_SECONDS:
                looked = now
                if self._has_news() or now - reported >= report_seconds(self._limit):
                    reported = now
                    self._tell()
            if self._has_ended:
                self.kill()
                finished = self._folder.finished_step() is not None
                return LaunchOutcome(0 if finished else 1, "" if finished else "see what it says")
            silent = time.monotonic() - self._heard
            if silent > self._limit and not is_cut_off:
                is_cut_off = True
                on_notice(
                    f"machine 0 has not answered for {silent:.1f} s: the ranks of this machine end, and wait for it"
                )
                self._end_alone(silent)
            if is_cut_off and silent < self._limit:
                is_cut_off = False
                on_notice("machine 0 answers again")
            if silent > patience:
                raise RunFailure(
                    f"machine 0 has not answered for {silent:.0f} s; see what it says, and start the run again"
                )
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        if self._ranks is not None:
            self._ranks.kill()

    def _end_alone(self, silent: float) -> None:
        ranks = self._ranks
        if ranks is not None and ranks.alive():
            ranks.kill()
            ranks.collect()
            message = f"machine {self._member.index} was cut off from machine 0 for {silent:.1f} s and ended its ranks"
            self._failures.append(RankFailure(min(ranks.pids), 1, message, "machine"))

    def _obey(self, order: Order) -> None:
        report, calls = self.report, {}
        if order.action == "start":
            self.kill()
            index = self._member.index
            prepare_start(self._spawner, self._folder, order.world_size, index)
            self._ranks = LocalRanks(
                self._folder, self._spawner, lambda rank: not in_mid_run(self._folder, rank, index), index
            )
            self._failures = self._ranks.failures
            with suppress(OSError):
                (self._folder.path / LOGS).mkdir(exist_ok=True)
            report = replace(report, exit_codes={}, failures=[], seen={})
            try:
                self._ranks.start(
                    order.ranks, order.world_size, self._threads, order.generation, self._variables(order.fence)
                )
            except RunFailure as error:
                self._ranks.kill()
                self._failures.append(RankFailure(min(order.ranks), 1, str(error)))
        elif self._ranks is not None and order.action == "calls":
            calls = read_tracebacks(self._folder.path, self._ranks.pids)
        elif self._ranks is not None and order.action == "ask":
            self._ranks.ask()
        elif self._ranks is not None and order.action == "end":
            self._ranks.end(order.grace_seconds)
        elif order.action == "kill":
            self.kill()
        if self._ranks is not None:
            self._ranks.collect()
        self.report = replace(report, obeyed=order.number, calls=calls)

    def _variables(self, fence: int) -> dict[str, str]:
        assert self._store is not None
        port, secret = self._store
        told = {"MASTER_PORT": str(port), SECRET: secret.hex(), "FOURFOLD_FENCE": str(fence)}
        return {**reach(self._member), **told}

    def _has_news(self) -> bool:
        """Takes in how the ranks are; whether the leader does not know of it yet, but for where they are."""
        ranks = self._ranks
        self.report = replace(
            self.report,
            is_ready=self._spawner.ready() and not (ranks is not None and ranks.alive()),
            exit_codes=dict(ranks.exit_codes) if ranks is not None else {},
            failures=list(self._failures),
            signal=self._received[0] if self._received else 0,
        )
        return self.report != self._told

    def _tell(self) -> None:
        """Reports to the leader, where it can be reached."""
        ranks, index = self._ranks, self._member.index
        seen = observe(self._folder.path, index, ranks.pids) if ranks is not None else {}
        self.report = replace(self.report, number=self.report.number + 1, seen=seen)
        try:
            if self._connection is None:
                self._connect()
            assert self._connection is not None
            left = max(0.1, self._limit - (time.monotonic() - self._heard))
            self._connection.ask([b"set", report_key(index).encode(), REPORT.dump_json(self.report)], left)
            self._heard, self._told = time.monotonic(), self.report
        except (OSError, EOFError, BrokenFrame, RunFailure):
            self._disconnect()

    def _next_order(self) -> Order | None:
        """An order that was not carried out yet, as soon as it is there."""
        try:
            if self._asked is None and self._connection is not None:
                key = order_key(self._member.index).encode()
                self._asked = self._connection.begin([b"changed", b"%g" % _ORDER_SECONDS, key, self._order])
            if self._asked is None or not self._asked.done():
                return None
            status, *found = self._asked.result()
            self._asked = None
            if status != OK:
                return None
            self._order = found[0]
            order = ORDER.validate_json(self._order)
        except (OSError, EOFError, BrokenFrame, ValidationError):
            self._disconnect()
            return None
        return order if order.life == self.report.life and order.number > self.report.obeyed else None

    def _connect(self) -> None:
        """Raises where the leader cannot be reached, or has not said where it is."""
        found = find_store(self._folder, self._token)
        if found is None:
            self._has_ended = (
                self._store is not None
            )  # a leader that ends takes its word back, one that is killed does not
            raise EOFError("no store is announced")
        if found != self._store:  # another launch of the leader
            self.kill()
            self._ranks, self._store = None, found
            self.report = replace(self.report, obeyed=0)
        host = loopback() if self._member.is_alone else self._member.master_address
        self._connection = Connection(host, *found, _TRY_SECONDS)
        self._connection.ask([b"append", JOINED.encode(), b"%d," % self._member.index], _TRY_SECONDS)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._asked = self._told = None
        self._order = b""
