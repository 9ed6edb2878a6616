"""The batch of a step, prepared beside the step before it.

A step's rows are a pure function of its number, so what a thread reads ahead is what the step would have read, and a restart needs
no memory of it. The thread reads tokens, finds documents and places, and puts every microbatch into (pinned) host memory; the step
then copies alone.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from fourfold.data.batches import Batch, GlobalBatches
from fourfold.train.feed import RowFeed


class BatchesAhead:
    """The feeds of a rank's steps, one step ahead."""

    def __init__(
        self,
        batches: GlobalBatches,
        rows: Callable[[int], Sequence[int]],
        feed: Callable[[Batch], RowFeed],
        steps: int,
        device: torch.device,
    ) -> None:
        """`rows`: of a step's global batch, the rank's own. `feed`: from these rows to what a step reads. `steps`: that of the run,
        or of its stage, after which nothing is read."""
        self._batches, self._rows, self._feed, self._steps = batches, rows, feed, steps
        self._thread = ThreadPoolExecutor(1, "batches-ahead", _use, (device,))
        self._ahead: tuple[int, Future[RowFeed]] | None = None

    def take(self, step: int) -> RowFeed:
        """The feed of a step; begins to prepare the next. Raises what reading raised, at the step whose batch it is."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == step:
            feed = ahead[1].result()
        else:
            feed = self._prepare(step)
        if step + 1 < self._steps:
            self._ahead = step + 1, self._thread.submit(self._prepare, step + 1)
        return feed

    def _prepare(self, step: int) -> RowFeed:
        return self._feed(self._batches.batch(step, self._rows(step))).prepare()

    def close(self) -> None:
        """Ends the thread, whatever it reads."""
        self._ahead = None
        self._thread.shutdown(wait=False, cancel_futures=True)


def _use(device: torch.device) -> None:
    """Pinned memory of a thread belongs to its current device: without this, every rank would open the first."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
