"""`fourfold fit`: a software profile adjusted to a few measured runs, written as a file for `--software`."""

from dataclasses import asdict
from pathlib import Path

from fourfold.cli.countdown import Countdown
from fourfold.cli.options import Flag, print_json
from fourfold.cli.validate import cases_of
from fourfold.config import UserError
from fourfold.cost.fitted import write_software
from fourfold.report.format_fit import fit_lines
from fourfold.simulate.paused_garbage_collection import without_collection
from fourfold.validate.fit import fit_software


@without_collection()
def fit(
    *paths: Path, out: Path | None = None, cluster: str | None = None, trust: Flag = False, json: Flag = False
) -> int:
    """Adjust the constants of a software to a few measured runs: plan and simulate then predict its next runs better.

    One to five runs of one software are enough. Its constants stay as near to the shipped ones as the runs allow.

    Parameters
    ----------
    paths
        Files of [[case]] tables, or folders of runs, as for validate.
    out
        Write the software here, a new file, for --software of plan and simulate.
    cluster
        Take the runs of the folders as of this cluster: NAME, NAME:DEVICES or a cluster file. Default: each run's own.
    trust
        Import the Python code that a run names (layout.schedule, model.block = python:...). train imports it in any case.
    json
        Print one JSON document and nothing else.
    """
    if not paths:
        raise UserError("no case is given; what works: fourfold fit examples/cases.toml --out mine.toml")
    if out is not None and out.suffix != ".toml":
        raise UserError(f"--out {out}: allowed: a file that ends in .toml; a value that works: mine.toml")
    if out is not None and out.exists():
        raise UserError(f"--out {out}: exists already; name a new file")
    cases = [case for path in paths for case in cases_of(path, cluster, trust)]
    with Countdown("predictions") as progress:
        found = fit_software(cases, progress)
    if out is not None:
        sources = sorted({case.source for case in cases if case.source})
        write_software(
            out, found.base, found.constants, f"Fitted by fourfold to {len(cases)} runs: {'; '.join(sources)[:500]}"
        )
    if json:
        names = [case.name for case in cases]
        print_json({"cases": names, **asdict(found), "software_file": str(out) if out else None})
    else:
        print("\n".join(fit_lines(found, cases, out)))
    return 0
