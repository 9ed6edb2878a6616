"""`fourfold report`, `doctor` and `sample`: a run that trains or has trained, read from its folder."""

import sys
from pathlib import Path

from fourfold.api.reports import run_report
from fourfold.api.samples import SampleOptions, sampled
from fourfold.cli.options import Json, Trust, print_answer
from fourfold.config import UserError
from fourfold.report.ending import diagnosis_lines
from fourfold.report.run_files import check_files
from fourfold.results.record import document
from fourfold.supervise.doctor import diagnose


def report(
    what: Path,
    /,
    *,
    cluster: str | None = None,
    software: str | None = None,
    out: Path | None = None,
    trace: Path | None = None,
    trust: Trust = False,
    json: Json = False,
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
    """
    if what.is_file():
        if json or trace is not None or cluster is not None or software is not None:
            raise UserError(
                f"{what}: a saved document takes --out alone; what works: fourfold report {what} --out page.html"
            )
        from fourfold.explore.schema import saved_page

        print(f"page {saved_page(what, out)}")
        return 0
    found = run_report(what, cluster, software, out, trace, trust)
    return print_answer(json, found.to_json, found.lines)


def doctor(run: Path, /, *, trust: Trust = False, json: Json = False) -> int:
    """Say which rank of a run is at fault: where every rank stands, in which call, and who waits for whom.

    Reads the counters, calls and events of a run in progress on this machine, or what a dead one left; disturbs nothing. A rank
    writes its calls itself; where py-spy is installed, the native calls are shown too. Exit code 1 where the ranks live and none
    gets on.

    Parameters
    ----------
    run
        The folder of a run.
    """
    check_files(run)
    found = diagnose(run, trust)
    print_answer(json, lambda: document(found), lambda: diagnosis_lines(found))
    return 1 if found.verdict is not None else 0


def sample(run: Path, /, *, asked: SampleOptions) -> int:
    """Let the model of a run write, from its latest checkpoint.

    Parameters
    ----------
    run
        The folder of a run.
    """
    print(sampled(run, asked, lambda text: print(f"warning: {text}", file=sys.stderr)))
    return 0
