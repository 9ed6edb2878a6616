"""New files: checked before the work, never written over another, there in full or not at all."""

import os
from pathlib import Path

from fourfold.config import RunFailure, UserError
from fourfold.config.whole_file import write_whole


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
