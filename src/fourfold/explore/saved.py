"""A document that `--json` printed into a file, read back for a page that shows it."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fourfold.config import UserError
from fourfold.config.whole_file import bounded
from fourfold.explore.schema import SCHEMAS

KINDS = {"best": "plan", "time_shares": "simulate"}
"""A key that only one kind of document has, and the kind."""


def saved_document(path: Path) -> dict[str, Any]:
    """The document by its kind, `simulate` or `plan`. Raises `UserError` where the file holds neither."""
    works = (
        "what works: the file that fourfold simulate RUN --json or fourfold plan RUN --json printed, or a run's folder"
    )
    try:
        found = json.loads(bounded(path), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: is no JSON document: {error!s:.200}; {works}") from None
    kind = next((kind for key, kind in KINDS.items() if isinstance(found, dict) and key in found), None)
    if kind is None:
        raise UserError(f"{path}: is neither a plan nor a simulation; {works}")
    try:
        TypeAdapter(SCHEMAS[kind]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:200]
        raise UserError(f"{path}: {where}: {first['msg']}; written by another version of fourfold? {works}") from None
    return {kind: found}


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")
