"""A barrier of all ranks that is a counter in the store, for threads beside training.

A process group would serve too, and costs each rank a connection and two requests for every other rank: 537 million requests for
16,384 ranks. The counter costs a rank two requests a barrier and no connection, whatever their number, and the store a few keys:

    save/3       how many ranks have come to barrier 3 of those that meet as "save"; deleted once all have
    save/3/all   set by the rank that comes last; deleted once all have come to barrier 4, and so left barrier 3
"""

import torch.distributed as dist

from fourfold.config import RunFailure


class StoreBarrier:
    """A rank's end of one barrier after another. All `num_ranks` ranks make it with the same `name` and meet equally often; no two
    threads of a rank meet at once. It waits as long as the store does."""

    def __init__(self, store: dist.Store, name: str, num_ranks: int) -> None:
        self._store, self._name, self._num_ranks = store, name, num_ranks
        self._met = 0

    def meet(self) -> None:
        """Returns once all ranks have called it. Raises `RunFailure` where some do not come, and `DistStoreError` where
        the store is gone."""
        if self._num_ranks == 1:
            return
        before, self._met = f"{self._name}/{self._met}", self._met + 1
        arrived, all_here = f"{self._name}/{self._met}", f"{self._name}/{self._met}/all"
        if self._store.add(arrived, 1) == self._num_ranks:
            self._store.set(all_here, "1")
            self._store.delete_key(arrived)
            self._store.delete_key(f"{before}/all")  # nobody waits there: all have come here
            return
        try:
            self._store.wait([all_here])
        except RuntimeError as error:
            came = self._store.add(arrived, 0)
            raise RunFailure(
                f"barrier {self._met} of {self._name!r} beside training: {came} of {self._num_ranks} ranks came [{error}]"
            ) from error
