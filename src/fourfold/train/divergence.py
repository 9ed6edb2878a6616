"""The end of a run that diverged: too many steps in a row whose gradients are not finite."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from fourfold.config import FinalFailure, RunConfig
from fourfold.runtime.corruption import Corruption
from fourfold.runtime.first_bad_tensor import BadTensor, OwnGradients, bad_state
from fourfold.runtime.units import Unit
from fourfold.train.metrics import append_event
from fourfold.train.session import RankContext

_RANK_BITS = 24


class SkippedSteps:
    """Counts the steps skipped in a row. Every rank sees the same: the gradient norm is one number for all of them."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.in_a_row = 0
        """0 while the latest step was taken: then, and only then, its state is worth saving."""
        self.located: str | None = None
        """The first bad gradient of the latest step that was skipped."""

    def count(self, skipped: bool) -> bool:
        """Takes in a step; whether the run has diverged."""
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        return self.in_a_row >= self._config.run.max_skipped_steps

    def locate(self, gradients: OwnGradients | None, context: RankContext) -> str | None:
        """The first bad gradient of a skipped step, with its rank, the same on every rank; None where no rank knows."""
        self.located = _agree_on_first(gradients.first_bad() if gradients is not None else None, context)
        return self.located

    def failure(self, step: int, found: BadTensor | None, saved: int | None, context: RankContext) -> FinalFailure:
        """The message of the run's end after step `step`, the same on every rank.

        `found`: this rank's first bad tensor, when the step was run once more. `saved`: the step of the newest checkpoint.
        """
        agreed = _agree_on_first(found, context)
        where = f"the first bad tensor is {agreed}" if agreed is not None else "the same step run once more was finite"
        if agreed is None and self.located is not None:
            where += f", at first it was {self.located}"
        return self._failure(
            f"the gradients of {self.in_a_row} steps in a row, {step - self.in_a_row} to {step - 1}, were not finite, so these "
            f"steps were skipped; {where}",
            saved,
        )

    def require_finite(self, units: Iterable[Unit], saved: Callable[[], int | None], context: RankContext) -> None:
        """Raises `FinalFailure` on every rank where one has weights or optimizer states that are not finite. `saved`: the step of
        the newest checkpoint."""
        agreed = _agree_on_first(bad_state(units), context)
        if agreed is not None:
            raise self._failure(f"the state is not finite and is not saved; the first bad tensor is {agreed}", saved())

    def _failure(self, what: str, saved: int | None) -> FinalFailure:
        section, limit = self._config.optimizer, self._config.run.max_skipped_steps
        clip = "optimizer.clip_norm = 1.0 or " if section.clip_norm is None else ""
        before = f"the checkpoint of step {saved} is from before" if saved is not None else "nothing was saved before"
        return FinalFailure(
            f"diverged: {what}; {before}; what helps: {clip}a lower optimizer.lr ({section.lr:g} here); run.max_skipped_steps = "
            f"{limit} is the limit"
        )


def tell_corruption(error: Corruption, out: Path, step: int, rank: int) -> None:
    """Writes an event, once for those who found it together."""
    if rank == error.ranks[0]:
        append_event(out, "corruption", step=step, ranks=list(error.ranks), tensor=error.what, message=str(error))


def _agree_on_first(found: BadTensor | None, context: RankContext) -> str | None:
    """The text of the first of all ranks' bad tensors, with its rank; None where no rank found one."""
    first = context.least((found.order << _RANK_BITS) + context.rank if found is not None else sys.maxsize)
    if first == sys.maxsize:
        return None
    rank = first % (1 << _RANK_BITS)
    return f"{context.tell(found.what if found is not None else '', rank)} on rank {rank}"
