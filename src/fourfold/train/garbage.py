"""Python's cyclic garbage, collected by all ranks at the same step.

Left to itself each rank collects when it has made enough objects, at another instruction than its peers, all of whom then wait for
it: with many ranks some rank is late in every step. Reference counts free tensors at once; what is left are cycles, which the
runtime does not make in a step and a person's own block may.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


class StepGarbage:
    """Collections of one rank, before every `every_steps`-th step; 0: when Python likes."""

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps

    def before(self, step: int) -> None:
        """Collects before a step whose number, the same on every rank and after every restart, says so."""
        if self._every_steps and step % self._every_steps == 0:
            gc.collect()


@contextmanager
def collected_together(every_steps: int) -> Iterator[StepGarbage]:
    """Within the block Python collects nothing by itself. Objects that are there when it begins are no garbage: no collection looks
    at them again, so that one takes a few milliseconds."""
    was_enabled, were_frozen = gc.isenabled(), gc.get_freeze_count()
    if every_steps:
        gc.collect()
        gc.freeze()
        gc.disable()
    try:
        yield StepGarbage(every_steps)
    finally:
        if every_steps:
            if not were_frozen:
                gc.unfreeze()
            if was_enabled:
                gc.enable()
