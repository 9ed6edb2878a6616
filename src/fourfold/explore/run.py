"""The documents of the run that the command line named: as it stands, compared with its prediction, and all its metrics.

The folder comes from the command line alone: no request can name one.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fourfold.api.run_feed import RunFeed
from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.config.run_file import named_code
from fourfold.explore.pool import WorkerPool
from fourfold.explore.setup import Malformed
from fourfold.launch.run_folder import RunFolder
from fourfold.report.run_files import check_files
from fourfold.results.comparison import compare
from fourfold.results.record import document
from fourfold.results.step_timeline import comparison_document

KEYS: Mapping[str, tuple[str, ...]] = {"run": ("first", "last"), "metrics": (), "layers": (), "comparison": ()}
"""Documents of a run, and what a request for one may state: steps from `first` to `last`."""
COMPARISON = "comparison"
_BLOCKS = 16
"""Blocks of metrics, of 4 MB, that are read for an answer: a page shows a long run at once, and asks again for the rest."""


class RunAnswers:
    """Answers for one folder; None: the server was started without one."""

    def __init__(self, path: Path | None, pool: WorkerPool) -> None:
        self._path, self._pool = path, pool
        self._feed = RunFeed(path) if path is not None else None
        self._reading, self._preparing = threading.Lock(), threading.Lock()

    async def answer(self, name: str, body: Mapping[str, Any], owner: str) -> bytes:
        """The document as JSON. Raises `Malformed` and `UserError`."""
        for key, value in body.items():
            if key not in KEYS[name] or type(value) is not int or not 0 <= value < 2**53:
                raise Malformed(f"{key[:40]}: cannot be stated here; allowed: {', '.join(KEYS[name]) or 'nothing'}")
        if self._path is None or self._feed is None:
            raise UserError(
                "no run is open; what works: fourfold explore RUN, with the folder of a run, for example runs/tiny"
            )
        if name == COMPARISON:
            return await self._pool.compute(COMPARISON, {"folder": str(self._path)}, owner)
        return await asyncio.to_thread(self._read, self._feed, name, body)

    def _read(self, feed: RunFeed, name: str, body: Mapping[str, Any]) -> bytes:
        with self._reading:
            feed.refresh(0 if name == "metrics" else _BLOCKS)
            if name == "metrics":
                found = feed.metrics.table()
            elif name == "layers":
                found = dict(document(feed.layers.record()))
            else:
                found = feed.document(body.get("first", 0), body.get("last"))
        if not feed.is_prepared and self._preparing.acquire(blocking=False):
            threading.Thread(target=self._prepare, args=(feed,), daemon=True).start()
        return json.dumps(found, allow_nan=False, separators=(",", ":")).encode()

    def _prepare(self, feed: RunFeed) -> None:
        with contextlib.suppress(UserError):
            feed.prepare()
        self._preparing.release()


def run_comparison(folder: Path) -> dict[str, Any]:
    """`fourfold report --json` of a folder that may be somebody else's. Raises `UserError`."""
    check_files(folder)
    run = RunFolder(folder)
    for key, value in named_code(run.require_config(trust=True)).items():
        raise UserError(
            f"{key} = {shortened(value)}: is Python code, which is not imported to show a run; what works: fourfold report --trust"
        )
    return comparison_document(compare(run))
