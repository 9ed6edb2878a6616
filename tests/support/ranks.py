"""Warm worker processes: `run_on_ranks(n, function, **kwargs)` calls a function on n gloo ranks and returns their results."""

import atexit
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.support.forking import forking_context
from tests.support.reach import FOLDER, enter

TIMEOUT_SECONDS = 100.0
_POOLS: dict[int, "RankPool"] = {}


class RankPool:
    """n processes with one thread each, joined in one process group, that live until the tests end."""

    def __init__(self, size: int) -> None:
        context = forking_context()
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._pipes = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, size, store), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((os.environ.get("PYTEST_CURRENT_TEST", ""), function, kwargs))
        results: dict[Any, Any] = {}
        while len(results) < len(self._pipes):  # the first failure ends it: the other ranks may be waiting for that one
            waiting = [pipe for pipe in self._pipes if pipe not in results]
            ready = wait(waiting, timeout=TIMEOUT_SECONDS)
            if not ready:
                stuck = [self._pipes.index(pipe) for pipe in waiting]
                raise AssertionError(f"ranks {stuck} have not answered for {TIMEOUT_SECONDS} seconds")
            for pipe in ready:
                ok, value = pipe.recv()  # type: ignore[union-attr]
                if not ok:
                    raise AssertionError(f"rank {self._pipes.index(pipe)} failed:\n{value}")
                results[pipe] = value
        return [results[pipe] for pipe in self._pipes]

    def close(self) -> None:
        patience = TIMEOUT_SECONDS if FOLDER in os.environ else 2  # what a rank reached is written at its end
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=patience)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()


def _serve(pipe: Any, rank: int, size: int, store: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    while True:
        try:
            context, function, kwargs = pipe.recv()
            enter(context)
        except EOFError:
            break
        try:
            pipe.send((True, function(rank=rank, **kwargs)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


def run_on_ranks(size: int, function: Callable[..., Any], **kwargs: Any) -> list[Any]:
    """Results of `function(rank=rank, **kwargs)`, one a rank. The function must be importable at module level."""
    pool = _POOLS.get(size)
    if pool is None:
        pool = _POOLS[size] = RankPool(size)
    try:
        return pool.run(function, kwargs)
    except BaseException:  # a test's time limit too: the ranks' answers would be taken for those to the next call
        _POOLS.pop(size).close()
        raise


@atexit.register
def close_pools() -> None:
    while _POOLS:
        _POOLS.popitem()[1].close()
