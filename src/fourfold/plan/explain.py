"""Why a layout lost: it does not fit, cannot be, or spends more seconds on something."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fourfold.config import UserError, did_you_mean
from fourfold.plan.budget import SearchBudget
from fourfold.plan.conflicts import contradiction
from fourfold.plan.constraints import KEYS, parse_value
from fourfold.plan.found_layouts import Found
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.simulate.step import mean_seconds


@dataclass(frozen=True)
class Explanation:
    """`asked`: the fields that a person named. `priced`: the best layout with them, None if there is none, and then `refused` says
    why. `differences`: seconds that it spends more than the best layout, by what on, mean over pipeline ranks, largest first."""

    asked: Mapping[str, int | str]
    priced: Priced | None
    refused: str | None
    differences: tuple[tuple[str, float], ...] = ()


def parse_fixed(text: str) -> dict[str, int | str]:
    """`tp=16,pp=4` -> fields of a layout. Raises `UserError`."""
    result: dict[str, int | str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in (*KEYS, "dp"):
            raise UserError(
                f"--explain {part.strip()!r}: not KEY=VALUE with a key of a layout; {did_you_mean(key, KEYS)}allowed keys: "
                f"{', '.join(KEYS)}, dp; "
                f"a value that works: --explain tp=8,pp=4"
            )
        result[key] = parse_value(key, value, "--explain ")
    return result


def explain(
    request: Request,
    fixed: Mapping[str, int | str],
    found: Found,
    budget: SearchBudget | float,
    known: Sequence[Priced] = (),
    pricer: Pricer | None = None,
) -> Explanation:
    """Searches among the layouts with these fields alone, and sets the best of them beside the best of all. The fields replace what
    was stated of the same keys; all other constraints hold."""
    pricer = pricer or Pricer(request)
    own = search(request, budget, keep=1, fixed=fixed, known=[*found.best, *known], pricer=pricer)
    if not own.best:
        if own.smallest is not None:
            held = own.smallest[1] / 1e9
            limit = request.memory_bytes / 1e9
            return Explanation(
                fixed, None, f"nothing with it fits: the least that a device would hold is {held:.0f} GB of {limit:.0f}"
            )
        return Explanation(fixed, None, _none(request, fixed))
    best = found.best[0] if found.best else own.best[0]
    mine, theirs = (mean_seconds(pricer.summary(each.candidate).spent) for each in (own.best[0], best))
    rows = [(kind, mine.get(kind, 0.0) - theirs.get(kind, 0.0)) for kind in {*mine, *theirs}]
    rows.sort(key=lambda row: (-abs(row[1]), row[0]))
    return Explanation(fixed, own.best[0], None, tuple(rows))


def _none(request: Request, fixed: Mapping[str, int | str]) -> str:
    why = contradiction(request.fixing(fixed))
    rule = "" if request.constraints.limits else ": degrees must divide"
    return f"no layout of this model, cluster and batch has it{rule}" + (f"; {why}" if why else "")
