"""Cyclic garbage is collected before the same steps on every rank, at no other time, and does not grow in between."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from fourfold.train.garbage import StepGarbage, collected_together


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


def steps_of_collections(first: int, last: int, every: int) -> list[int]:
    """Steps before which a rank collected that trained from `first` to `last`, and made garbage as if by its number."""
    found: list[int] = []
    with collected_together(every) as garbage:
        for step in range(first, last):
            gc.callbacks.append(note := lambda phase, info, step=step: found.append(step) if phase == "start" else None)
            garbage.before(step)
            for _ in range(500 * (step % 3)):
                Node()
            gc.callbacks.remove(note)
    return found


def test_ranks_collect_at_the_same_steps_also_after_a_restart() -> None:
    assert steps_of_collections(0, 25, 10) == [0, 10, 20]
    assert steps_of_collections(13, 25, 10) == [20]


@pytest.mark.parametrize("every", [1, 7])
def test_memory_does_not_grow(every: int) -> None:
    """Cycles that every step leaves live for one interval at most."""
    alive: weakref.WeakSet[Node] = weakref.WeakSet()
    most = 0
    with collected_together(every) as garbage:
        for step in range(60):
            garbage.before(step)
            for _ in range(20):
                alive.add(Node())
            most = max(most, len(alive))
    assert most == 20 * every


def test_what_was_there_before_is_not_looked_at_again() -> None:
    kept = [Node() for _ in range(1000)]
    with collected_together(5):
        assert not gc.isenabled()
        assert gc.get_freeze_count() > len(kept)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_zero_leaves_it_to_python() -> None:
    with collected_together(0) as garbage:
        assert gc.isenabled()
        assert isinstance(garbage, StepGarbage)
        found: list[str] = []
        gc.callbacks.append(note := lambda phase, info: found.append(phase))
        garbage.before(0)
        gc.callbacks.remove(note)
    assert not found
