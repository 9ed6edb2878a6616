"""`fourfold report`: a run's measured steps beside their prediction, in the terminal and as a page of one file."""

import time
from pathlib import Path

from fourfold.cli.options import Flag, print_json
from fourfold.config import RunFailure, UserError
from fourfold.config.run_rows import read_rows
from fourfold.launch.run_folder import RunFolder
from fourfold.report.comparison import compare
from fourfold.report.format_comparison import comparison_document, comparison_lines
from fourfold.report.format_goodput import goodput_lines
from fourfold.report.page_file import NOT_BUILT, REPORT, is_built, write_page
from fourfold.report.run_feed import run_documents
from fourfold.report.run_files import check_files
from fourfold.report.run_trace import TRACE, write_run_trace
from fourfold.supervise.goodput import goodput


def report(
    what: Path,
    /,
    *,
    cluster: str | None = None,
    software: str | None = None,
    out: Path | None = None,
    trace: Path | None = None,
    trust: Flag = False,
    json: Flag = False,
) -> int:
    """Show a run's steps as predicted and as measured: every kind of instruction, every rank, the largest differences.

    Writes the page report.html into the run's folder too: one file, which opens without a network. The folder may be that of a
    run in progress, once it has saved. A plan or a simulation, saved by --json, becomes such a page as well.

    Parameters
    ----------
    what
        The folder of a run; or a file that fourfold simulate --json or fourfold plan --json printed.
    cluster
        Predict on this cluster: NAME, NAME:DEVICES or a cluster file, above all one that fourfold calibrate wrote here.
        Default: the run's own.
    software
        Whose software is predicted: fourfold, or a framework and its year. Default: fourfold.
    out
        Write the page to this file. Default: report.html in the run's folder, or beside the plan or simulation.
    trace
        Write a step as measured and as predicted to this file, for ui.perfetto.dev. Default: trace.json in the run's folder.
    trust
        Import the Python code that the run names (layout.schedule, model.block = python:...). train imports it in any case.
    json
        Print one JSON document and nothing else.
    """
    if out is not None and not is_built():
        raise RunFailure(NOT_BUILT)
    if what.is_file():
        if json or trace is not None or cluster is not None or software is not None:
            raise UserError(
                f"{what}: a saved document takes --out alone; what works: fourfold report {what} --out page.html"
            )
        return _saved(what, out if out is not None else what.with_suffix(".html"))
    check_files(what)
    folder = RunFolder(what)
    found = compare(folder, cluster, software, trust)
    page = out if out is not None else what / REPORT
    written = trace if trace is not None else what / TRACE
    if is_built():
        write_page(page, folder.path.resolve().name, run_documents(folder, found, trust))
    events = write_run_trace(found, written)
    time_of = goodput(list(read_rows(folder.events)), read_rows(folder.metrics), time.time())
    if json:
        document = {
            **comparison_document(found),
            "goodput": time_of.to_json(),
            "page": str(page) if is_built() else None,
            "trace": str(written),
        }
        print_json(document)
        return 0
    print("\n".join([*comparison_lines(found), "", *goodput_lines(time_of, found.measured_seconds)]))
    print(f"\npage {page if is_built() else f'none: {NOT_BUILT}'}")
    print(f"trace of {events} events for ui.perfetto.dev {written}")
    return 0


def _saved(path: Path, out: Path) -> int:
    from fourfold.explore.schema import saved_document

    if not is_built():
        raise RunFailure(NOT_BUILT)
    write_page(out, path.stem, saved_document(path))
    print(f"page {out}")
    return 0
