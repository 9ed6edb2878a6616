"""Ranks that are threads of one process, and agree by waiting for each other."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class Together:
    """A place where the threads leave values for each other."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.values = size, threading.Barrier(size, timeout=20), [None] * size  # type: ignore[var-annotated]

    def share(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


class ThreadRank:
    """One of them, with the messages of a `RankContext`."""

    def __init__(self, rank: int, together: Together) -> None:
        self.rank, self.world_size, self.together = rank, together.size, together

    def least(self, value: int) -> int:
        return min(self.together.share(self.rank, value))

    def most(self, values: list[float]) -> list[float]:
        return [max(each) for each in zip(*self.together.share(self.rank, values), strict=True)]

    def tell(self, text: str, source: int) -> str:
        return self.together.share(self.rank, text)[source]


def on_thread_ranks(size: int, run: Callable[[ThreadRank], Result]) -> list[Result]:
    """The results of `run` on each of `size` ranks."""
    together = Together(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: run(ThreadRank(rank, together)), range(size)))
