"""A fitted software profile in a terminal: errors before and after, each case left out in turn, the constants that moved."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from fourfold.report.format_comparison import signed
from fourfold.report.units import per_cent, table
from fourfold.validate import Case
from fourfold.validate.fit import Residual, SoftwareFit

_FIGURES = {"step": "step time", "memory": "memory"}


def fit_lines(found: SoftwareFit, cases: Sequence[Case], out: Path | None) -> list[str]:
    """All lines for a terminal."""
    left_out = {(each.case, each.figure): each.error for each in found.left_out}
    rows = []
    for before, after in zip(found.before, found.after, strict=True):
        error = left_out[before.case, before.figure]
        name = cases[before.case].name
        errors = (before.error, after.error) if len(cases) == 1 else (before.error, after.error, error)
        rows.append([name, _FIGURES[before.figure], *(signed(math.expm1(each)) for each in errors)])
    head = ("case", "figure", "error", "fitted", "fitted to the others")[: 4 if len(cases) == 1 else 5]
    lines = [*table(head, rows), ""]
    for figure, words in _FIGURES.items():
        if any(each.figure == figure for each in found.before):
            text = f"{words:<10} median error {_median(found.before, figure)}, fitted {_median(found.after, figure)}"
            if len(cases) > 1:
                text += f", each by the others {_median(found.left_out, figure)}"
            lines.append(text)
    moved = [[name, f"{found.prior[name]:.4g}", f"{value:.4g}"] for name, value in found.constants.items()]
    lines += ["", *table(("constant", found.base, "fitted"), moved)]
    if out is not None:
        lines += ["", f"written to {out}; what to do with it: fourfold plan ... --software {out}"]
    else:
        lines += ["", "nothing is written; --out mine.toml keeps it for --software mine.toml"]
    return lines


def _median(errors: Sequence[Residual], figure: str) -> str:
    return per_cent(median(abs(math.expm1(each.error)) for each in errors if each.figure == figure))
