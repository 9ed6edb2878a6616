"""Small TOML files that a person names: bounded before they are read and parsed, one message for what is wrong."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourfold.config.errors import UserError, nearest, shortened

MAX_FILE_BYTES = 2 * 2**20
MAX_LINE_DOTS = 50


@dataclass(frozen=True)
class SmallToml:
    """Files of one kind, in the words of its messages. `holds`: whose text is never as long; `example`: a file's name; `missing`:
    said where there is no file; `works`: said where the text is no TOML; `line_dots`: most dots of a line that is no list of
    numbers."""

    holds: str
    example: str
    missing: str
    works: str = ""
    line_dots: int = MAX_LINE_DOTS

    def read(self, path: Path) -> str:
        """The text of a file. Raises `UserError`."""
        try:
            if path.exists() and not path.is_file():
                raise UserError(
                    f"{path}: cannot be read, not a file; give the path of a .toml file, for example {self.example}"
                )
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise UserError(f"{path}: larger than {MAX_FILE_BYTES} bytes; {self.holds} takes a few thousand")
            return data.decode("utf-8-sig")  # editors on Windows begin a file with a mark
        except FileNotFoundError:
            there = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
            near = nearest(path.name, there)
            hint = f"; there is {path.parent / near}" if near else ""
            raise UserError(f"{path}: no such file{hint}; {self.missing}") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as a UTF-8 text file: {error}") from None

    def table(self, text: str, where: str) -> dict[str, Any]:
        """The table of a text. `where`: what to call it in messages. Raises `UserError`."""
        if len(text) > MAX_FILE_BYTES:
            raise UserError(f"{where}: larger than {MAX_FILE_BYTES} characters; {self.holds} takes a few thousand")
        for number, line in enumerate(text.split("\n"), start=1):
            if line.count(".") > self.line_dots and not _is_list_of_numbers(line):
                raise UserError(
                    f"{where}: line {number}: more than {self.line_dots} dots; allowed: that many, or a list of numbers"
                )
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid TOML: {shortened(str(error))[1:-1]}{self.works}") from None


def _is_list_of_numbers(line: str) -> bool:
    """Whether `line` is numbers, behind a short key or none: tomllib takes quadratic time for a key of many dots."""
    key, _, numbers = line.rpartition("=")
    return (
        key.count(".") <= MAX_LINE_DOTS
        and re.fullmatch(r"[-+0-9eE_., \t\[\]]*", numbers) is not None
        and re.search(r"\.[^,\]]*\.", numbers) is None
    )
