"""The server of the page: static files, documents, and a search with its progress as server-sent events."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fourfold.config import UserError
from fourfold.explore.board.runs import BOARD_RUN, BoardRuns
from fourfold.explore.connections import BoundedProtocol
from fourfold.explore.documents import DOCUMENTS
from fourfold.explore.guard import Guard, new_token
from fourfold.explore.pool import Superseded, WorkerPool
from fourfold.explore.refusals import REFUSED, refusal_of
from fourfold.explore.run import KEYS, RunAnswers
from fourfold.explore.setup import Malformed
from fourfold.launch.machine import num_cores
from fourfold.report.page_file import DIST as PAGE

SEARCH = "plan"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WARM, KEPT = 2, 400
"""Processes that compute; answers that are kept, since a person goes back and forth."""
JSON = "application/json"


def bracketed(host: str) -> str:
    """The host as an address names it."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class Settings:
    """Where the server listens. `token`: needed by every request; `ticket`: brings it to the browser that is opened, once. `run`:
    the folder of the run that is shown."""

    host: str = LOOPBACK[0]
    port: int = 4404
    token: str = field(default_factory=new_token)
    ticket: str = field(default_factory=new_token)
    run: Path | None = None
    workers: int = max(WARM, min(4, num_cores()))

    @property
    def hosts(self) -> set[str] | None:
        """Values of `Host` that are answered; None: all, since others know this machine by names that it does not know."""
        if self.host not in LOOPBACK:
            return None
        names = {bracketed(name) for name in LOOPBACK}
        return {f"{name}:{self.port}" for name in names} | (names if self.port == 80 else set())

    def address(self, query: str, host: str | None = None) -> str:
        """The page's address, by default as this machine itself reaches it. `query`: token or ticket."""
        everywhere = {"0.0.0.0": LOOPBACK[0], "::": LOOPBACK[-1], "": LOOPBACK[0]}
        return f"http://{bracketed(host or everywhere.get(self.host, self.host))}:{self.port}/?token={query}"


class Answers:
    """The answers of `/api/NAME`."""

    def __init__(self, pool: WorkerPool, run: Path | None, board: BoardRuns) -> None:
        self._pool, self._kept, self._board = pool, dict[str, bytes](), board
        self._run = RunAnswers(run, pool)

    async def answer(self, request: Request) -> Response:
        """A document; `{"refused": message}` of a layout that cannot run; else `{"error": message}` with a status that says whose
        fault it is."""
        name = request.path_params["name"]
        if name == SEARCH or (name not in DOCUMENTS and name not in KEYS and name != BOARD_RUN):
            return refusal(404, f"{name}: there is no such document; allowed: {', '.join(DOCUMENTS)}")
        try:
            body = await read_body(request)
            if name == BOARD_RUN:
                return Response(await self._board.answer(body), media_type=JSON)
            if name in KEYS:
                return Response(await self._run.answer(name, body, owner_of(request, name)), media_type=JSON)
            key = json.dumps([name, body], sort_keys=True)
            content = self._kept.pop(key, None)
            if content is not None:
                self._pool.supersede(owner_of(request, name))
            else:
                content = await self._until_gone(request, name, body)
            self._kept[key] = content
            while len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
        except Superseded:
            return refusal(409, "a newer request took this one's place")
        except REFUSED as error:
            status, message = refusal_of(error)
            return JSONResponse(message, status)
        return Response(content, media_type=JSON)

    async def _until_gone(self, request: Request, name: str, body: dict[str, Any]) -> bytes:
        """Computes as long as somebody waits for the answer."""
        computing = asyncio.ensure_future(self._pool.compute(name, body, owner_of(request, name)))
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({computing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not computing.done():
                raise Superseded
            return computing.result()
        finally:
            gone.cancel()
            computing.cancel()

    async def search(self, request: Request) -> Response:
        """A search: events `progress` with a text and a share, then `document` or `error`. It ends when the reader goes."""
        try:
            body = await read_body(request)
        except Malformed as error:
            return refusal(422, str(error))
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._events(body, owner_of(request, SEARCH)), media_type="text/event-stream", headers=headers
        )

    async def _events(self, body: dict[str, Any], owner: str) -> AsyncIterator[bytes]:
        events: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        computing = asyncio.ensure_future(
            self._pool.compute(SEARCH, body, owner, lambda what, share: events.put_nowait((what, share)))
        )
        try:
            yield event("progress", json.dumps({"text": "reading the request", "share": 0.0}))
            while not computing.done() or not events.empty():
                with contextlib.suppress(TimeoutError):
                    what, share = await asyncio.wait_for(events.get(), 0.2)
                    yield event("progress", json.dumps({"text": what, "share": share}))
            try:
                yield event("document", computing.result().decode())
            except (UserError, RuntimeError) as error:
                yield event("error", json.dumps({"error": str(error)}))
            except Superseded:
                yield event("error", json.dumps({"error": "a newer search took this one's place"}))
        finally:
            computing.cancel()


def event(name: str, data: str) -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {data}\n\n".encode()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Raises `Malformed`."""
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the request is no JSON: {error!s:.100}") from None
    if not isinstance(body, dict):
        raise Malformed('the request is no JSON object; what works: {"run": "preset:llama3-70b"}')
    return body


def owner_of(request: Request, name: str) -> str:
    """The source whose requests replace one another: a window of a browser, and a view in it."""
    return f"{request.headers.get('x-window', 'none')[:64]} {request.headers.get('x-view', name)[:64]}"


def refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)


async def _index(request: Request) -> Response:
    return Response((PAGE / "index.html").read_bytes(), media_type="text/html")


def create_app(settings: Settings) -> Starlette:
    """The application; its processes start and end with it."""
    pool = WorkerPool(settings.workers)
    board = BoardRuns(is_private=settings.host in LOOPBACK)
    documents = Answers(pool, settings.run, board)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        pool.start()
        try:
            yield
        finally:
            await board.stop()
            pool.stop()

    routes = [
        Route("/", _index),
        Route(f"/api/{SEARCH}", documents.search, methods=["POST"]),
        Route("/api/{name}", documents.answer, methods=["POST"]),
        Mount("/", StaticFiles(directory=PAGE, check_dir=False)),
    ]
    guard = Middleware(Guard, hosts=settings.hosts, token=settings.token, ticket=settings.ticket, port=settings.port)
    return Starlette(routes=routes, middleware=[guard], lifespan=lifespan)


def serve(settings: Settings, listening: socket.socket) -> None:
    """Answers on a socket that listens already, until it is interrupted."""
    import uvicorn

    config = uvicorn.Config(
        create_app(settings), http=BoundedProtocol, ws="none", proxy_headers=False, log_level="error", server_header=False,
        timeout_graceful_shutdown=2, h11_max_incomplete_event_size=65_536,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])
