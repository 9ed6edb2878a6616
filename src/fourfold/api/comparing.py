"""`fourfold compare`: layouts, clusters, software and runs as columns, each predicted or measured."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fourfold.api.numbers import parse_number
from fourfold.api.simulation import simulate
from fourfold.config import UserError
from fourfold.config.presets import RUN_PRESET
from fourfold.hardware import THIS
from fourfold.launch.run_folder import RunFolder
from fourfold.report.run_files import check_files
from fourfold.report.side_by_side import LETTERS, Side, measured_side, planned_sides, predicted_side

_OVERRIDE = re.compile(r"[a-z_]+(\.[a-z_]+)*=.*", re.DOTALL)
MAX_DOCUMENT_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """The columns that are made of each source, and what is known of the whole run."""

    cluster: Sequence[str] = ()
    """NAME, NAME:DEVICES or a cluster file; several: a column for each. Default: the run file's own."""
    software: Sequence[str] = ()
    """Whose software runs it; several: a column for each. Default: the run file's own."""
    with_: Sequence[str] = ()
    """A further column, of the same run with these keys: section.key=value, several with spaces between them."""
    tokens: str | None = None
    """How many tokens the run trains on, for example 15.6T: for days and cost."""
    price: str | None = None
    """Dollars for a device hour. Default: the cluster's, if it has one."""
    trust: bool = False
    """Import the Python code that a run names (layout.schedule, model.block = python:...). train imports it in any case."""


def compared(sources: Sequence[str], asked: ColumnOptions) -> list[Side]:
    """The columns. Raises `UserError` where there are too few or too many, or one of them cannot be."""
    overrides = [each for each in sources if _OVERRIDE.fullmatch(each) and not Path(each).exists()]
    named = [each for each in sources if each not in overrides]
    if not named:
        raise UserError(
            "what is to be compared? what works: fourfold compare preset:llama3-70b --with layout.microbatch_sequences=2"
        )
    sides = [side for source in named for side in _sides(source, overrides, asked, len(named) == 1)]
    if not 2 <= len(sides) <= len(LETTERS):
        works = "another run, --with layout.microbatch_sequences=2, or --cluster twice"
        raise UserError(f"{len(sides)} columns: allowed: 2 to {len(LETTERS)}; what works: {works}")
    return sides


def _sides(source: str, overrides: list[str], asked: ColumnOptions, alone: bool) -> list[Side]:
    if source.endswith(".json"):
        if overrides or asked.cluster or asked.software or asked.with_:
            raise UserError(
                f"{source}: keys and options change no document; leave them out, or name the run file instead"
            )
        return _document_sides(source, every=alone)
    sides = list[Side]()
    if Path(source).is_dir():
        check_files(Path(source))
        folder = RunFolder(Path(source))
        amount = None if asked.tokens is None else parse_number(asked.tokens, "--tokens", "15.6T", least=1)
        dollars = None if asked.price is None else parse_number(asked.price, "--price", "2.5", 0.0, 1e6)
        sides.append(measured_side(source, folder, amount, dollars, asked.trust))
        if not asked.cluster and folder.require_config(asked.trust).cluster.preset == THIS:
            return sides
    variants = [overrides, *([*overrides, *shlex.split(each)] for each in asked.with_)]
    for place, profile, keys in product(asked.cluster or (None,), asked.software or (None,), variants):
        words = [source, *keys[len(overrides) :]]
        words += [f"--cluster {place}"] if len(asked.cluster) > 1 else []
        words += [f"--software {profile}"] if len(asked.software) > 1 else []
        sides.append(predicted_side(" ".join(words), _simulated(source, keys, place, profile, asked)))
    return sides


def _simulated(
    source: str,
    keys: list[str],
    cluster: str | None,
    software: str | None,
    asked: ColumnOptions,
) -> dict[str, Any]:
    """The document that `fourfold simulate --json` prints. Raises `UserError`, naming the column."""
    try:
        found = simulate(
            Path(source),
            keys,
            cluster=cluster,
            software=software,
            tokens=asked.tokens,
            price=asked.price,
            trust=asked.trust,
        )
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
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{source}: cannot be read as a JSON document: {error!s:.200}; allowed: a file, {RUN_PRESET}NAME"
        ) from None
    if not isinstance(document, dict):
        raise UserError(f"{source}: not a document of plan --json or simulate --json")
    return planned_sides(source, document, every) if "best" in document else [predicted_side(source, document)]
