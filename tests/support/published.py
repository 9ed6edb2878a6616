"""Published rows in every form that the readings know, and the cases that they are."""

from pathlib import Path

from case import Case
from normalise import translate
from row_files import read_rows

ROWS = {row.id: row for row in read_rows([Path(__file__).parents[1] / "benchmarks" / "published" / "rows"])[0]}
CASES = {name: case for name, row in ROWS.items() if isinstance(case := translate(row), Case)}
