"""Ranks that wait for each other after work that grows with the model: drawing, reading and checking its parameters.

A collective has a time limit, which a large enough model passes by its size alone. Here a rank waits as long as others get on: the
limit counts from the last time that any of them said so, in the store and on the board that supervisors read.
"""

import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from fourfold.config import RunFailure
from fourfold.runtime.progress import ProgressBoard
from fourfold.train.session import RankContext

_TOLD_SHARE = 0.05
"""Share of the time limit after which a rank that gets on says so again: a few requests, however long it works."""
_LOOK_SHARE = 0.125
"""Share of it after which a rank that waits looks whether others get on."""


class PatientBarrier:
    """One rank's part in a barrier of all. `what`: the work before it, a name that no other barrier in this store has."""

    def __init__(
        self,
        what: str,
        store: dist.Store,
        world_size: int,
        seconds: float,
        record: Callable[[int], None] = lambda counter: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seconds`: how long nobody may get on. `record`: notes the number of a part of the work that begins."""
        self._what, self._store, self._world_size, self._seconds = what, store, world_size, seconds
        self._record, self._clock = record, clock
        self._parts = 0
        self._told = clock()

    def advance(self) -> None:
        """This rank did another part of its work."""
        self._parts += 1
        self._record(self._parts)
        now = self._clock()
        if self._world_size > 1 and now - self._told > _TOLD_SHARE * self._seconds:
            self._told = now
            self._store.add(f"{self._what}/parts", 1)

    def wait(self) -> None:
        """Waits until every rank has come. Raises `RunFailure` where nobody has got on for the time limit."""
        if self._world_size == 1:
            return
        come = self._store.add(f"{self._what}/come", 1)
        if come == self._world_size:
            self._store.set(f"{self._what}/all", "1")
        before, changed = self._state(), self._clock()
        while True:
            try:
                self._store.wait([f"{self._what}/all"], timedelta(seconds=_LOOK_SHARE * self._seconds))
                return
            except RuntimeError as error:
                now = self._state()
                if now != before:
                    before, changed = now, self._clock()
                    self._parts += 1
                    self._record(self._parts)  # who waits for others that get on is not stuck
                elif self._clock() - changed >= self._seconds:
                    raise RunFailure(
                        f"{self._what}: {self._world_size - now[0]} of {self._world_size} ranks have not come, and none got on in "
                        f"run.timeout_seconds = {self._seconds:g}; see the logs of the others [{str(error).splitlines()[0]}]"
                    ) from error

    def _state(self) -> tuple[int, int]:
        """How many ranks have come, and how often others said that they get on."""
        return self._store.add(f"{self._what}/come", 0), self._store.add(f"{self._what}/parts", 0)


class Starting:
    """A rank's way to its first step: a barrier after each of its parts."""

    def __init__(self, context: RankContext, seconds: float, board: ProgressBoard) -> None:
        self._context, self._seconds, self._board = context, seconds, board
        self._number = 0
        self._next = self._barrier()

    def _barrier(self) -> PatientBarrier:
        context, what = self._context, f"parameters {self._number}"
        return PatientBarrier(what, context.store, context.world_size, self._seconds, self._board.record)

    def advance(self) -> None:
        """As `PatientBarrier.advance`."""
        self._next.advance()

    def meet(self) -> None:
        """As `PatientBarrier.wait`; the next part begins then."""
        self._next.wait()
        self._number += 1
        self._next = self._barrier()
