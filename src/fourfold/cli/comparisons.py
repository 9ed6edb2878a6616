"""`fourfold compare`, `validate` and `fit`: predictions and runs side by side, and software adjusted to what was measured."""

import json as json_text
import shutil
from dataclasses import asdict
from pathlib import Path

from fourfold.api.comparing import ColumnOptions, compared
from fourfold.api.validation import fitted, validated
from fourfold.cli.options import Json, TrustEach, print_answer
from fourfold.cli.progress import Countdown
from fourfold.report.format_validation import fit_lines, validation_lines
from fourfold.report.side_by_side import side_by_side_document, side_by_side_lines
from fourfold.simulate.paused_garbage_collection import without_collection


@without_collection()
def validate(*paths: Path, cluster: str | None = None, trust: TrustEach = False, json: Json = False) -> int:
    """Predict runs that were measured and compare: errors of step time and memory, order of layouts, regret.

    Cases are stated in the run file's words, each with its cluster, its software and what was measured; examples/cases.toml shows
    how. Several layouts of one model, cluster and batch are ranked against each other. `presets` names the runs of the literature
    that ship: each is compared with its published figure.

    Parameters
    ----------
    paths
        Files of [[case]] tables, folders of runs that fourfold trained, `presets`, or preset:NAME.
    cluster
        Predict the runs of the folders on this cluster: NAME, NAME:DEVICES or a cluster file. Default: each run's own.
    """
    found = validated(paths, cluster, trust)
    print(json_text.dumps(found.to_json(), indent=1, allow_nan=False) if json else "\n".join(validation_lines(found)))
    return 0 if any(outcome.prediction.refused is None for outcome in found.outcomes) else 1


@without_collection()
def fit(
    *paths: Path, out: Path | None = None, cluster: str | None = None, trust: TrustEach = False, json: Json = False
) -> int:
    """Adjust the constants of a software to a few measured runs: plan and simulate then predict its next runs better.

    One to five runs of one software are enough. Its constants stay as near to the shipped ones as the runs allow. Where three runs
    and more would not predict each other better, nothing is written, and the exit code is 1.

    Parameters
    ----------
    paths
        Files of [[case]] tables, or folders of runs, as for validate.
    out
        Write the software here, a new file, for --software of plan and simulate.
    cluster
        Take the runs of the folders as of this cluster: NAME, NAME:DEVICES or a cluster file. Default: each run's own.
    """
    with Countdown("predictions") as progress:
        cases, found = fitted(paths, out, cluster, trust, progress)
    written = str(out) if out and found.helps else None
    told = {"cases": [case.name for case in cases], **asdict(found), "software_file": written}
    print_answer(json, lambda: told, lambda: fit_lines(found, cases, out))
    return 0 if found.helps else 1


def compare(*sources: str, columns: ColumnOptions, json: Json = False) -> int:
    """Put layouts, clusters, software or runs side by side: step, memory, bubble, exposed communication, days, cost.

    fourfold compare preset:llama3-70b --with "layout.tp=8 layout.cp=1" --with "layout.tp=2 layout.cp=4" compares three
    layouts;
    fourfold compare run.toml --cluster dgx-h100:64 --cluster dgx-b200:64 two clusters; fourfold compare runs/a runs/b two runs.

    Parameters
    ----------
    sources
        Run files, preset:NAME, folders of runs (as measured; predicted too where the cluster is known), or documents of plan --json
        and simulate --json. Keys of the run file, as section.key=value, hold for all predictions.
    """
    sides = compared(sources, columns)
    width = shutil.get_terminal_size((100, 24)).columns
    return print_answer(json, lambda: side_by_side_document(sides), lambda: side_by_side_lines(sides, width))
