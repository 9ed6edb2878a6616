"""`fourfold compare`: layouts, clusters, software and runs side by side."""

import json as json_text
import re
import shlex
import shutil
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fourfold.api.numbers import parse_number
from fourfold.api.simulation import simulate as predict
from fourfold.cli.options import Flag, Repeated, print_json
from fourfold.config import UserError
from fourfold.config.presets import RUN_PRESET
from fourfold.hardware import THIS
from fourfold.launch.run_folder import RunFolder
from fourfold.report.run_files import check_files
from fourfold.report.side_by_side import (
    LETTERS,
    Side,
    measured_side,
    planned_sides,
    predicted_side,
    side_by_side_document,
    side_by_side_lines,
)

_OVERRIDE = re.compile(r"[a-z_]+(\.[a-z_]+)*=.*", re.DOTALL)
MAX_DOCUMENT_BYTES = 64 * 2**20


def compare(
    *sources: str,
    cluster: Repeated = None,
    software: Repeated = None,
    with_: Annotated[list[str] | None, Parameter(name="--with", negative=())] = None,
    tokens: str | None = None,
    price: str | None = None,
    trust: Flag = False,
    json: Flag = False,
) -> int:
    """Put layouts, clusters, software or runs side by side: step, memory, bubble, exposed communication, days, cost.

    fourfold compare preset:llama3-70b --with "layout.tp=8 layout.cp=1" --with "layout.tp=2 layout.cp=4" compares three
    layouts;
    fourfold compare run.toml --cluster dgx-h100:64 --cluster dgx-b200:64 two clusters; fourfold compare runs/a runs/b two runs.

    Parameters
    ----------
    sources
        Run files, preset:NAME, folders of runs (as measured; predicted too where the cluster is known), or documents of plan --json
        and simulate --json. Keys of the run file, as section.key=value, hold for all predictions.
    cluster
        NAME, NAME:DEVICES or a cluster file; several: a column for each. Default: the run file's own.
    software
        Whose software runs it; several: a column for each. Default: the run file's own.
    with_
        A further column, of the same run with these keys: section.key=value, several with spaces between them.
    tokens
        How many tokens the run trains on, for example 15.6T: for days and cost.
    price
        Dollars for a device hour. Default: the cluster's, if it has one.
    trust
        Import the Python code that a run names (layout.schedule, model.block = python:...). train imports it in any case.
    json
        Print one JSON document and nothing else.
    """
    overrides = [each for each in sources if _OVERRIDE.fullmatch(each) and not Path(each).exists()]
    named = [each for each in sources if each not in overrides]
    if not named:
        raise UserError(
            "what is to be compared? what works: fourfold compare preset:llama3-70b --with layout.microbatch_sequences=2"
        )
    variants = [overrides, *([*overrides, *shlex.split(each)] for each in with_ or ())]
    sides: list[Side] = []
    for source in named:
        if source.endswith(".json"):
            if overrides or cluster or software or with_:
                raise UserError(
                    f"{source}: keys and options change no document; leave them out, or name the run file instead"
                )
            sides += _document_sides(source, every=len(named) == 1)
            continue
        clusters: list[str | None] = [*cluster] if cluster else [None]
        if Path(source).is_dir():
            check_files(Path(source))
            folder = RunFolder(Path(source))
            amount = None if tokens is None else parse_number(tokens, "--tokens", "15.6T", least=1)
            dollars = None if price is None else parse_number(price, "--price", "2.5", 0.0, 1e6)
            sides.append(measured_side(source, folder, amount, dollars, trust))
            if cluster is None and folder.require_config(trust).cluster.preset == THIS:
                continue
        softwares: list[str | None] = [*software] if software else [None]
        for place, profile, keys in product(clusters, softwares, variants):
            words = [source, *keys[len(overrides) :]]
            words += [f"--cluster {place}"] if len(clusters) > 1 else []
            words += [f"--software {profile}"] if len(softwares) > 1 else []
            sides.append(
                predicted_side(" ".join(words), _simulated(source, keys, place, profile, tokens, price, trust))
            )
    if not 2 <= len(sides) <= len(LETTERS):
        works = "another run, --with layout.microbatch_sequences=2, or --cluster twice"
        raise UserError(f"{len(sides)} columns: allowed: 2 to {len(LETTERS)}; what works: {works}")
    if json:
        print_json(side_by_side_document(sides))
    else:
        print("\n".join(side_by_side_lines(sides, shutil.get_terminal_size((100, 24)).columns)))
    return 0


def _simulated(
    source: str,
    keys: list[str],
    cluster: str | None,
    software: str | None,
    tokens: str | None,
    price: str | None,
    trust: bool,
) -> dict[str, Any]:
    """The document that `fourfold simulate --json` prints. Raises `UserError`, naming the column."""
    try:
        found = predict(Path(source), keys, cluster=cluster, software=software, tokens=tokens, price=price, trust=trust)
    except UserError as error:
        raise UserError("\n".join(f"{' '.join([source, *keys])}: {line}" for line in str(error).splitlines())) from None
    return found.to_json(advice=False)


def _document_sides(source: str, every: bool) -> list[Side]:
    """Columns of a file that `plan --json` or `simulate --json` wrote."""
    path = Path(source)
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise UserError(
                f"{source}: larger than {MAX_DOCUMENT_BYTES} bytes; allowed: what plan --json or simulate --json writes"
            )
        document = json_text.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{source}: cannot be read as a JSON document: {error!s:.200}; allowed: a file, {RUN_PRESET}NAME"
        ) from None
    if not isinstance(document, dict):
        raise UserError(f"{source}: not a document of plan --json or simulate --json")
    return planned_sides(source, document, every) if "best" in document else [predicted_side(source, document)]
