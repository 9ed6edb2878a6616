"""`fourfold report`: a run as it was measured beside its prediction, in text, as a document, a page and a trace."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourfold.api.run_feed import RunFeed, run_documents
from fourfold.config import RunFailure
from fourfold.launch.run_folder import RunFolder
from fourfold.report.format_campaign import goodput_lines
from fourfold.report.format_comparison import comparison_lines
from fourfold.report.history import History, history_lines
from fourfold.report.page_file import NOT_BUILT, REPORT, is_built, write_page
from fourfold.report.run_files import check_files
from fourfold.report.run_trace import TRACE, write_run_trace
from fourfold.results.comparison import Comparison, compare
from fourfold.results.goodput import MeasuredGoodput
from fourfold.results.record import document
from fourfold.results.step_timeline import comparison_document


@dataclass(frozen=True)
class RunReport:
    """A run beside its prediction, and what was written of it. `page` None: there is none, since it is not built."""

    comparison: Comparison
    goodput: MeasuredGoodput
    history: History
    page: Path | None
    trace: Path
    num_events: int

    def lines(self) -> list[str]:
        """The text of `fourfold report`."""
        found = self.comparison
        return [
            *comparison_lines(found),
            "",
            *goodput_lines(self.goodput, found.measured_seconds),
            *(["", *lines] if (lines := history_lines(self.history)) else []),
            f"\npage {self.page if self.page is not None else f'none: {NOT_BUILT}'}",
            f"trace of {self.num_events} events for ui.perfetto.dev {self.trace}",
        ]

    def to_json(self) -> dict[str, Any]:
        """The document of `fourfold report --json`."""
        return {
            **comparison_document(self.comparison),
            "goodput": document(self.goodput.record()),
            "history": document(self.history.entries),
            "page": str(self.page) if self.page is not None else None,
            "trace": str(self.trace),
        }


def run_report(
    path: Path,
    cluster: str | None = None,
    software: str | None = None,
    out: Path | None = None,
    trace: Path | None = None,
    trust: bool = False,
) -> RunReport:
    """Compares the run in a folder with its prediction, and writes its page and its trace. Raises `UserError`; `RunFailure` where
    a page is asked for and cannot be written."""
    if out is not None and not is_built():
        raise RunFailure(NOT_BUILT)
    check_files(path)
    folder = RunFolder(path)
    found = compare(folder, cluster, software, trust)
    feed = RunFeed(path, trust)
    feed.refresh()
    page = out if out is not None else path / REPORT
    if is_built():
        write_page(page, folder.path.resolve().name, run_documents(feed, found))
    written = trace if trace is not None else path / TRACE
    events = write_run_trace(found, written)
    time_of = feed.launches.goodput(feed.metrics.step_times(), time.time())
    return RunReport(found, time_of, feed.history, page if is_built() else None, written, events)
