"""Published rows in every form that the readings know, and the cases that they are."""

from pathlib import Path

from as_case import as_case
from case import PublishedCase
from fourfold.cost.fitted import fitted
from fourfold.cost.prices import Prices
from fourfold.validate import case_prices, case_spec
from normalise import normalise
from row_files import read_rows

ROWS = {row.id: row for row in read_rows([Path(__file__).parents[1] / "benchmarks" / "published" / "rows"])[0]}
CASES = {name: case for name, row in ROWS.items() if isinstance(case := normalise(row), PublishedCase)}


def prices_of(case: PublishedCase) -> Prices:
    """Prices of a case by the constants that ship."""
    run = as_case(case)
    return case_prices(run, case_spec(run), fitted())
