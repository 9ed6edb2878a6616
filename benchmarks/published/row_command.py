"""The command line of a script that reads published rows."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from case import PublishedCase, Skip
from fourfold.config import UserError
from normalise import normalise
from row import Row
from row_files import read_rows


def row_parser(text: str | None, jobs: int = 1) -> argparse.ArgumentParser:
    """A parser of the folders of rows and of the number of processes, told by a script's own text."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--jobs", type=int, default=jobs)
    return parser


def rows_or_exit(parser: argparse.ArgumentParser, folders: Sequence[Path]) -> list[Row]:
    """All rows of the folders; where there are none, the script ends with the reason."""
    try:
        return read_rows(folders, strict=False)[0]
    except UserError as error:
        parser.error(str(error))


def cases_of(rows: Sequence[Row]) -> list[PublishedCase]:
    """The cases that the rows state, in order."""
    return [case for case in map(normalise, rows) if not isinstance(case, Skip)]
