"""A few warm processes that compute documents. A newer request of one owner (a window and its view) ends the older one.

A computation is cancelled by ending its process; the next one is a fork of a process that has answered before.
"""

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from fourfold.config import RunFailure, UserError
from fourfold.explore.refusals import as_fault
from fourfold.explore.setup import Malformed
from fourfold.plain_text import PlainStream

MOST_WAITING, MOST_OWNERS = 64, 256
DEADLINE_SECONDS = 120.0
"""A document that takes longer is given up; a search has no deadline, since a person watches and may stop it."""
_DONE, _PROGRESS, _REFUSED, _MALFORMED, _BROKEN = b"d", b"p", b"r", b"m", b"b"


class Superseded(Exception):
    """A newer request took this one's place."""


class Worker:
    """A process and the pipe to it."""

    def __init__(self, context: multiprocessing.context.BaseContext) -> None:
        self.here, there = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(there,), daemon=False)  # type: ignore[attr-defined]
        self.process.start()
        there.close()

    def end(self) -> None:
        """Ends the process and what it started."""
        with contextlib.suppress(OSError, TypeError):
            os.killpg(self.process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        self.process.kill()
        self.process.join(1.0)
        self.here.close()


class WorkerPool:
    """At most `size` computations at once; others wait in line, up to a bound."""

    def __init__(self, size: int) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["fourfold.explore.warm"])
        self._size = size
        self._free = asyncio.Semaphore(size)
        self._idle: list[Worker] = []
        self._owners: dict[str, asyncio.Task[bytes]] = {}
        self._last: dict[str, Worker] = {}
        self._waiting = 0
        self._workers: set[Worker] = set()

    def start(self) -> None:
        for _ in range(self._size):
            self._add()

    def _add(self) -> None:
        worker = Worker(self._context)
        self._workers.add(worker)
        self._idle.append(worker)

    def stop(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def _take(self, owner: str) -> Worker:
        """The idle worker that answered the owner last, which knows parts of the answer; else the one that rests longest."""
        last = self._last.pop(owner, None)
        worker = last if last in self._idle else self._idle[0]
        self._idle.remove(worker)
        self._last[owner] = worker
        while len(self._last) > MOST_OWNERS:
            del self._last[next(iter(self._last))]
        return worker

    def supersede(self, owner: str) -> None:
        """Ends what the owner asked for before."""
        before = self._owners.pop(owner, None)
        if before is not None:
            before.cancel()

    async def compute(
        self, name: str, body: Mapping[str, Any], owner: str, report: Callable[[str, float], None] | None = None
    ) -> bytes:
        """The document, as JSON. Raises `Malformed`, `UserError`, `Superseded` where the owner asked again, `RunFailure` where too
        many wait."""
        if self._waiting >= MOST_WAITING:
            raise RunFailure(f"{self._waiting} requests wait already; ask again in a moment")
        task = asyncio.ensure_future(self._computed(name, body, owner, report))
        self.supersede(owner)
        self._owners[owner] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Superseded from None
            task.cancel()
            raise
        finally:
            if self._owners.get(owner) is task:
                del self._owners[owner]

    async def _computed(
        self, name: str, body: Mapping[str, Any], owner: str, report: Callable[[str, float], None] | None
    ) -> bytes:
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        worker, complete = self._take(owner), False
        try:
            worker.here.send_bytes(json.dumps([name, body]).encode())
            async with asyncio.timeout(None if report is not None else DEADLINE_SECONDS):
                while (message := await asyncio.to_thread(worker.here.recv_bytes))[:1] == _PROGRESS:
                    if report is not None:
                        report(*json.loads(message[1:]))
            complete = True
        except TimeoutError:
            raise UserError(
                f"this takes more than {DEADLINE_SECONDS:.0f} seconds; what works: fewer pipeline ranks or larger microbatches"
            ) from None
        except (EOFError, OSError):
            raise RunFailure("the computation ended before its time; there may be too little memory") from None
        finally:
            if complete:
                self._idle.append(worker)
            else:
                self._workers.discard(worker)
                worker.end()
                self._add()
            self._free.release()
        kind, content = message[:1], message[1:]
        if kind == _MALFORMED:
            raise Malformed(content.decode())
        if kind == _REFUSED:
            raise UserError(content.decode())
        if kind == _BROKEN:
            raise RuntimeError(content.decode())
        return content


def _serve(pipe: Connection) -> None:
    """The life of a worker: requests in, documents out, until the pipe is closed."""
    from fourfold.explore.documents import encoded

    os.setpgid(0, 0)
    sys.stderr = PlainStream(sys.stderr)  # tracebacks quote what a run's folder holds
    gc.freeze()  # what was imported is no garbage

    def report(what: str, share: float) -> None:
        pipe.send_bytes(_PROGRESS + json.dumps([what, share]).encode())

    with contextlib.suppress(EOFError, OSError):
        while True:
            name, body = json.loads(pipe.recv_bytes())
            try:
                answer = _DONE + encoded(name, body, report)
            except UserError as error:
                answer = (_MALFORMED if isinstance(error, Malformed) else _REFUSED) + str(error).encode()
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                answer = _BROKEN + str(as_fault(error)).encode()
            pipe.send_bytes(answer)
