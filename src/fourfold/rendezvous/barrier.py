"""A barrier of all ranks that is a counter in the store: for threads beside training, and after work that grows with the model.

A process group would serve threads too, and costs each rank a connection and two requests for every other rank: 537 million
requests for 16,384 ranks. The counter costs a rank two requests a barrier and no connection, whatever their number, and the store a
few keys:

    save/3       how many ranks have come to barrier 3 of those that meet as "save"; deleted once all have
    save/3/all   set by the rank that comes last; deleted once all have come to barrier 4, and so left barrier 3
    save/parts   how often some rank said that it gets on

A collective has a time limit, which a large enough model passes by its size alone: drawing, reading, checking and writing it. Here
a rank waits as long as others get on. The limit counts from the last time that any of them said so.
"""

import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from fourfold.config import RunFailure

_TOLD_SHARE = 0.05
"""Share of the time limit after which a rank that gets on says so again: a few requests, however long it works."""
_LOOK_SHARE = 0.125
"""Share of it after which a rank that waits looks whether others get on."""


class StoreBarrier:
    """A rank's end of one barrier after another. All `num_ranks` ranks make it with the same `name` and meet equally often; no two
    threads of a rank meet at once."""

    def __init__(
        self,
        store: dist.Store,
        name: str,
        num_ranks: int,
        seconds: float,
        record: Callable[[int], None] = lambda counter: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seconds`: how long nobody may get on. `record`: notes the number of a part of the work that begins."""
        self._store, self._name, self._num_ranks, self._seconds = store, name, num_ranks, seconds
        self._record, self._clock = record, clock
        self._met = self._parts = 0
        self._told = clock()

    def advance(self) -> None:
        """This rank did another part of the work that ends at the next barrier."""
        self._get_on()
        now = self._clock()
        if self._num_ranks > 1 and now - self._told > _TOLD_SHARE * self._seconds:
            self._told = now
            self._store.add(f"{self._name}/parts", 1)

    def meet(self) -> None:
        """Returns once all ranks have called it. Raises `RunFailure` where nobody has got on for the time limit, and
        `DistStoreError` where the store is gone."""
        if self._num_ranks == 1:
            return
        before, self._met = f"{self._name}/{self._met}", self._met + 1
        arrived, all_here = f"{self._name}/{self._met}", f"{self._name}/{self._met}/all"
        if self._store.add(arrived, 1) == self._num_ranks:
            self._store.set(all_here, "1")
            self._store.delete_key(arrived)
            self._store.delete_key(f"{before}/all")  # nobody waits there: all have come here
            return
        known, changed = None, self._clock()
        while True:
            try:
                self._store.wait([all_here], timedelta(seconds=_LOOK_SHARE * self._seconds))
                return
            except RuntimeError as error:
                now = self._store.add(arrived, 0), self._store.add(f"{self._name}/parts", 0)
                if now != known:
                    known, changed = now, changed if known is None else self._clock()
                    self._get_on()  # who waits for others that get on is not stuck
                elif self._clock() - changed >= self._seconds:
                    raise RunFailure(
                        f"barrier {self._met} of {self._name!r}: {now[0]} of {self._num_ranks} ranks came, and no other got on in "
                        f"run.timeout_seconds = {self._seconds:g}; see the logs of the others [{str(error).splitlines()[0]}]"
                    ) from error

    def _get_on(self) -> None:
        self._parts += 1
        self._record(self._parts)
