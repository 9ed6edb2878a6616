"""Options that commands share: flags, the document that `--json` prints, files for `--out`.

Such a file is checked before the work, never written over another, there in full or not at all.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fourfold.config import RunFailure, UserError
from fourfold.config.json_lines import finite
from fourfold.config.whole_file import write_whole

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Repeated = Annotated[list[str] | None, Parameter(negative=())]
AS_NEAREST = "model.as_nearest=true"
"""The override that --as-nearest stands for."""


def print_json(document: dict[str, Any]) -> None:
    """One document and nothing else, with null for NaN: files may hold any, and JSON has none."""
    print(json.dumps(finite(document), indent=1, allow_nan=False))


def check_pp_rank(pp_rank: int, pp: int) -> None:
    """Raises `UserError` for a pipeline rank that a layout of so many has not."""
    if not 0 <= pp_rank < pp:
        allowed = "0" if pp == 1 else f"0 to {pp - 1}"
        raise UserError(f"--pp-rank {pp_rank}: the layout has pp = {pp}; allowed: {allowed}")


def check_new_file(out: Path, works: str, another: str | Path, suffix: str = "") -> None:
    """Raises `UserError` where `out` cannot be a new file. `works`: a name that works; `another`: one beside a file that is there;
    `suffix`: the end that the name must have."""
    if not out.name.endswith(suffix) or not out.absolute().parent.is_dir():
        kind = f"a {suffix} file" if suffix else "a file"
        raise UserError(f"--out {out}: should name {kind} in a folder that is there; a value that works: --out {works}")
    if os.path.lexists(out):
        raise UserError(f"--out {out}: is there already; name a new file, for example --out {another}")


def write_new_file(out: Path, text: str) -> None:
    """Writes a small file in one piece. Raises `RunFailure`."""
    try:
        write_whole(out, text)
    except OSError as error:
        raise RunFailure(f"--out {out}: cannot be written: {error.strerror}; name another place with --out") from None
