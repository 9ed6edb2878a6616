"""Pauses Python's collector of cyclic garbage while millions of small objects without cycles are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """The collector looks at every live object again and again as more are made: a quarter of the time of a large simulation.
    Instructions and times refer to nothing that refers to them: reference counts free them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
