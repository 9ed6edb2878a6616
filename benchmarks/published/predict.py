"""Predicts published runs from their configuration alone and compares with what was measured.

python benchmarks/published/predict.py FILE.json... [--json]
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from case import PublishedCase, SettledPrediction, Skip
from compare import validate as compare
from explain import explain_case, explanation_lines
from fourfold.cli.progress import Countdown
from fourfold.config import UserError, did_you_mean
from normalise import normalise
from row import Row, Unread
from row_files import read_rows
from scatter import write_scatters
from settle import predict_case
from tables import summary_lines

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
_MOST_JOBS = 256


def predict(
    *paths: Path,
    source: str | None = None,
    limit: int | None = None,
    jobs: int = 1,
    explain: str | None = None,
    plots: Path | None = None,
    json: Flag = False,
) -> int:
    """Predict published runs from their configuration alone and compare with what was measured.

    Prints, by file and over all: errors of step time and memory, skill against one constant efficiency for each device and
    precision, order of layouts, regret, what was skipped and why. A row that cannot be read or predicted is skipped with its
    reason.

    Parameters
    ----------
    paths
        Files of JSON rows, or folders of such files.
    source
        Only rows whose file, source or id contains this text.
    limit
        Only so many rows, spread evenly over all.
    jobs
        Processes that predict side by side.
    explain
        One row, by its id: the case, the settings that were filled in, where its seconds and bytes go.
    plots
        Write scatter plots, predicted against measured, into this folder.
    json
        Print one JSON document and nothing else.
    """
    if not paths:
        raise UserError("no file is given; give files or folders of JSON rows: predict.py DIR")
    for name, value, most in (("--limit", limit, 10**9), ("--jobs", jobs, _MOST_JOBS)):
        if value is not None and not 1 <= value <= most:
            raise UserError(f"{name} {value}: allowed: 1 to {most}; a value that works: {name} 2")
    rows, unread = read_rows(paths, strict=False)
    rows = _chosen(rows, source)
    if explain is not None:
        return _explain(rows, explain, json)
    if limit is not None and len(rows) > limit:
        rows = [rows[index * len(rows) // limit] for index in range(limit)]
    if not rows and not unread:
        raise UserError("the files hold no rows; give a file with a list of runs")
    _validate(rows, unread, jobs, plots, json)
    return 0


def _chosen(rows: list[Row], source: str | None) -> list[Row]:
    if source is None:
        return rows
    wanted = source.lower()
    kept = [row for row in rows if any(wanted in text.lower() for text in (row.file, row.source, row.id))]
    if not kept:
        files = ", ".join(dict.fromkeys(row.file for row in rows))
        raise UserError(f"--source {source}: no row's file, source or id contains it; the files are {files[:500]}")
    return kept


def _validate(rows: list[Row], unread: list[Unread], jobs: int, plots: Path | None, as_json: bool) -> None:
    with Countdown("rows predicted") as countdown:
        if jobs == 1:
            outcome = compare(rows, predict_case, countdown, unread)
        else:
            with ProcessPoolExecutor(jobs) as pool:

                def each(
                    predict: Callable[[PublishedCase], SettledPrediction], cases: Sequence[PublishedCase]
                ) -> Iterable[SettledPrediction]:
                    return pool.map(predict, cases, chunksize=max(1, min(16, len(cases) // (4 * jobs))))

                outcome = compare(rows, predict_case, countdown, unread, each)
    written = write_scatters(outcome.rows, plots) if plots is not None else []
    if as_json:
        _print_json(outcome.to_json())
    else:
        print("\n".join([*summary_lines(outcome), *(f"wrote {path}" for path in written)]))


def _explain(rows: list[Row], name: str, as_json: bool) -> int:
    found = [row for row in rows if row.id == name]
    if not found:
        ids = [row.id for row in rows]
        hint = did_you_mean(name, ids).strip() or f"ids are such as {', '.join(ids[:3])}"
        raise UserError(f"--explain {name}: no row has this id; {hint}")
    case = normalise(found[0])
    if isinstance(case, Skip):
        raise UserError(f"--explain {name}: the row is skipped: {case.reason}")
    document = explain_case(case)
    if as_json:
        _print_json(document)
    else:
        print("\n".join(explanation_lines(document)))
    return 0


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))


def run(arguments: list[str]) -> int:
    """The exit code of a command line: 0 done, 1 failed, 2 usage; messages go to stderr."""
    app = App(name="predict.py", end_of_options_delimiter="")
    app.default(predict)
    try:
        return app(arguments, exit_on_error=False, print_error=False, result_action="return_value") or 0
    except CycloptsError as error:
        message, code = f"{error}\nsee predict.py --help", 2
    except UserError as error:
        message, code = str(error), error.exit_code
    print(f"error: {message[:1].lower()}{message[1:]}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
