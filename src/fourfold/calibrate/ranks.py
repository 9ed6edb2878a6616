"""Processes that measure together: `Ranks(n)` joins n of them in a process group, `run` calls a function on all of them."""

import multiprocessing as mp
import os
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from fourfold.config import RunFailure, UserError
from fourfold.config.errors import is_out_of_memory

ANSWER_SECONDS = 600.0


class Ranks:
    """n processes of `threads` threads each, set up as those of a training run are; they end with the `with` block."""

    def __init__(self, size: int, threads: int, device: str = "cpu") -> None:
        """`device`: cpu or cuda."""
        self.size, self.threads = size, threads
        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, size, threads, device, store), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], **options: Any) -> list[Any]:
        """`function(rank=rank, device=device, **options)` of every rank, in their order. Raises `RunFailure`."""
        try:
            for pipe in self._pipes:
                pipe.send((function, options))
            results: dict[Connection, Any] = {}
            while len(results) < self.size:
                ready = wait([pipe for pipe in self._pipes if pipe not in results], timeout=ANSWER_SECONDS)
                if not ready:
                    raise RunFailure(f"the ranks that measure have not answered for {ANSWER_SECONDS:.0f} s")
                for pipe in self._pipes:
                    if pipe not in ready:
                        continue
                    ok, value = pipe.recv()
                    if not ok:
                        raise RunFailure(f"rank {self._pipes.index(pipe)} of {self.size} could not measure: {value}")
                    results[pipe] = value
        except (EOFError, OSError):
            raise RunFailure(
                f"one of {self.size} ranks that measure has ended; free some memory or use fewer ranks"
            ) from None
        return [results[pipe] for pipe in self._pipes]

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=3 if error is None else 0)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


def answer(rank: int, device: Any) -> None:
    """Says that the rank has started."""


def _end_with_parent() -> None:
    """Ends this process where the one that started it has ended, however that was: it may measure for minutes without a look at
    its pipe."""
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _serve(pipe: Connection, rank: int, size: int, threads: int, device_type: str, store: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch
    import torch.distributed as dist

    from fourfold.runtime.allocator import keep_freed_memory

    torch.set_num_threads(threads)
    keep_freed_memory()
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device_type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device_type == "cuda" else "gloo"
    try:
        own = device if device_type == "cuda" else None
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, device_id=own)
        while True:
            function, options = pipe.recv()
            try:
                answer = (True, function(rank=rank, device=device, **options))
            except Exception as error:
                is_told = isinstance(error, UserError) or is_out_of_memory(error)
                answer = (False, str(error) if is_told else traceback.format_exc(limit=-3))
            pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        pass
    os._exit(0)  # threads of the communication library do not always end in order
