"""Training of a board: one run at a time, of a small model on a few CPU ranks of this machine, which ends by itself."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from fourfold.config import UserError
from fourfold.explore.board.document import board_document
from fourfold.explore.board.measured import MeasuredDocument, measured_document
from fourfold.explore.board.request import Board, read_board
from fourfold.explore.board.tiny import STEPS, write_run
from fourfold.explore.setup import validated
from fourfold.results.record import record

BOARD_RUN = "board_run"
"""The document's name in its address."""
MOST_RANKS = 4
SECONDS = 240.0
"""After which a run that has not ended is ended."""
_GRACE_SECONDS = 5.0
_MOST_LOG = 400


@record
class BoardRunDocument:
    """The board that was trained last, and its outcome. `link`, `stages`: that board; `seconds`: since it began, or that it took.
    `measured`: its last step beside the simulated one, once it has ended well."""

    state: Literal["none", "running", "done", "failed"]
    message: str
    link: str
    stages: list[int]
    seconds: float
    measured: MeasuredDocument | None


class BoardRunRequest(BaseModel):
    """`board`: train it (`BoardRequest`); `stop`: end what trains. Neither: how it stands."""

    model_config = ConfigDict(extra="forbid", strict=True)

    board: dict[str, Any] | None = None
    stop: bool = False


class BoardRuns:
    """The run of this server. `is_private`: whether the server listens for this machine alone; others may start no process."""

    def __init__(self, is_private: bool) -> None:
        self._is_private = is_private
        self._task: asyncio.Task[None] | None = None
        self._begun = 0.0
        self._found: dict[str, Any] = {"state": "none", "message": "", "link": "", "stages": [], "measured": None}
        self._seconds = 0.0

    async def answer(self, body: Mapping[str, Any]) -> bytes:
        """The document as JSON. Raises `Malformed`, and `UserError` where nothing can be started."""
        asked = validated(BoardRunRequest, body, "allowed: board, stop")
        if asked.stop:
            await self.stop()
        elif asked.board is not None:
            self._start(asked.board)
        return self._json()

    async def stop(self) -> None:
        """Ends what trains, with all its processes."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _start(self, body: Mapping[str, Any]) -> None:
        if not self._is_private:
            raise UserError(
                "this server answers other machines too, and starts no process for them; what works: fourfold explore without "
                "--host, or fourfold train with the saved file"
            )
        if importlib.util.find_spec("torch") is None:
            raise UserError("PyTorch is not installed here; what works: pip install fourfold[train]")
        if self._task is not None and not self._task.done():
            raise UserError("a board is being trained already; what works: wait for its end, or Stop")
        board = read_board(body)
        if board.num_ranks > MOST_RANKS:
            raise UserError(
                f"{board.num_ranks} ranks: allowed here: 2 to {MOST_RANKS}, each a process of this machine; what works: "
                f"{MOST_RANKS} ranks, or fourfold train with the saved file"
            )
        verdict = board_document(body)["verdict"]
        if verdict["state"] != "proved":
            raise UserError(f"only what is proved is trained: {verdict['message']}")
        self._begun = time.monotonic()
        self._put(board, "running", f"{STEPS} steps on {board.num_ranks} CPU ranks")
        self._task = asyncio.create_task(self._train(board))

    async def _train(self, board: Board) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="fourfold-board-", ignore_cleanup_errors=True) as name:
                folder = Path(name)
                log = await _trained(folder, board)
                if log:
                    self._put(board, "failed", log)
                    return
                found = await asyncio.to_thread(measured_document, folder / "run", board)
            self._put(board, "done", f"trained: {STEPS} steps, the last one is drawn", found)
        except asyncio.CancelledError:
            self._put(board, "failed", "stopped")
            raise
        except Exception as error:
            self._put(board, "failed", f"{type(error).__name__}: {error!s:.{_MOST_LOG}}")

    def _put(
        self, board: Board, state: Literal["running", "done", "failed"], message: str, measured: Any = None
    ) -> None:
        self._seconds = time.monotonic() - self._begun
        self._found = {
            "state": state,
            "message": message,
            "link": board.rows,
            "stages": list(board.stage_ranks),
            "measured": measured,
        }

    def _json(self) -> bytes:
        seconds = time.monotonic() - self._begun if self._found["state"] == "running" else self._seconds
        return json.dumps({**self._found, "seconds": round(seconds, 3)}, allow_nan=False).encode()


async def _trained(folder: Path, board: Board) -> str:
    """Trains the board in a folder; what went wrong, or an empty text. All processes are of one group, which ends with this."""
    run_file, log = write_run(folder, board), folder / "log"
    command = [sys.executable, "-m", "fourfold", "train", str(run_file), "--ranks", str(board.num_ranks), "--out",
               str(folder / "run")]  # fmt: skip
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder, start_new_session=True
        )
    try:
        async with asyncio.timeout(SECONDS):
            code = await process.wait()
    except TimeoutError:
        return f"the run took more than {SECONDS:.0f} seconds and was ended; what works: fewer microbatches or ranks"
    finally:
        await _end(process)
    return "" if code == 0 else f"fourfold train ended with {code}: {log.read_text(errors='replace')[-_MOST_LOG:]}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process and its group: it is asked first, since it ends its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await process.wait()
