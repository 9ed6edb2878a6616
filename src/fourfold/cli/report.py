"""`fourfold report`: a run's measured steps beside their prediction, in the terminal and as a page."""

import time
from pathlib import Path

from fourfold.cli.options import Flag, print_json
from fourfold.config.json_lines import read_jsonl
from fourfold.launch.run_folder import RunFolder
from fourfold.report.comparison import compare
from fourfold.report.format_comparison import comparison_document, comparison_lines
from fourfold.report.format_goodput import goodput_lines
from fourfold.report.run_page import PAGE, write_page
from fourfold.report.run_trace import TRACE, write_run_trace
from fourfold.supervise.goodput import goodput


def report(
    run: Path,
    /,
    *,
    cluster: str | None = None,
    software: str | None = None,
    html: Path | None = None,
    trace: Path | None = None,
    json: Flag = False,
) -> int:
    """Show a run's steps as predicted and as measured: every kind of instruction, every rank, the largest differences.

    Writes the page report.html into the run's folder too. The folder may be that of a run in progress, once it has saved.

    Parameters
    ----------
    run
        The folder of a run.
    cluster
        Predict on this cluster: NAME, NAME:DEVICES or a cluster file, above all one that fourfold calibrate wrote here.
        Default: the run's own.
    software
        Whose software is predicted: fourfold, or a framework and its year. Default: fourfold.
    html
        Write the page to this file. Default: report.html in the run's folder.
    trace
        Write a step as measured and as predicted to this file, for ui.perfetto.dev. Default: trace.json in the run's folder.
    json
        Print one JSON document and nothing else.
    """
    folder = RunFolder(run)
    found = compare(folder, cluster, software)
    page = html if html is not None else run / PAGE
    written = trace if trace is not None else run / TRACE
    write_page(found, folder, page)
    events = write_run_trace(found, written)
    time_of = goodput(list(read_jsonl(folder.events)), read_jsonl(folder.metrics), time.time())
    if json:
        document = {
            **comparison_document(found),
            "goodput": time_of.to_json(),
            "page": str(page),
            "trace": str(written),
        }
        print_json(document)
        return 0
    print("\n".join([*comparison_lines(found), "", *goodput_lines(time_of, found.measured_seconds)]))
    print(f"\npage {page}, and a trace of {events} events for ui.perfetto.dev {written}")
    return 0
