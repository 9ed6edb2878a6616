"""How sure a plan's best layout is: its memory, how far it is from what was measured, and why a faster one is behind it."""

from fourfold.plan.outlook import FAR
from fourfold.plan.planner import Plan
from fourfold.plan.pricing import Priced
from fourfold.report.units import format_bytes, per_cent, seconds_text
from fourfold.results.fit import fit_of_priced
from fourfold.results.plan import why_behind


def outlook_lines(plan: Plan, width: int = 11) -> list[str]:
    """Lines with labels of so many columns. Nothing on a machine that was measured: there predictions are its own."""
    best = plan.best
    if best is None or not best.out_of_memory:
        return []
    lines = []
    if best.is_near_limit:
        lines.append(f"{'surer':<{width}}{_instead(plan, best)}")
    if best.distance > FAR:
        lines.append(
            f"{'distance':<{width}}no measured run is near the first (distance {best.distance:.1f}): its interval is wider"
        )
    if (riskier := plan.found.riskier) is not None:
        gain = f"{per_cent(1 - riskier.seconds / best.seconds)} less time, {format_bytes(riskier.memory_bytes)}"
        fits = fit_of_priced(plan, riskier).phrase
        lines.append(
            f"{'riskier':<{width}}{seconds_text(riskier.seconds)}, {gain}, {fits}: {riskier.candidate.words()}"
        )
    return lines


def format_behind(priced: Priced, best: Priced | None) -> str:
    """Behind the row of a layout that is faster than the first: why it is not first."""
    if best is None or priced.seconds >= best.seconds:
        return ""
    return f" | faster by {per_cent(best.seconds / priced.seconds - 1)}: {why_behind(priced, best)}"


def _instead(plan: Plan, best: Priced) -> str:
    """The best layout that surely fits, and what it costs."""
    other, rows = plan.found.surely_fits, plan.found.best
    if other is None:
        return "no layout was found that surely fits"
    name = f"row {rows.index(other) + 1}" if other in rows else other.candidate.words()
    slower = f"{per_cent(other.seconds / best.seconds - 1)} slower" if other.seconds > best.seconds else "no slower"
    held = f"{fit_of_priced(plan, other).phrase} with {format_bytes(other.memory_bytes)}"
    return f"{held}: {slower}, {seconds_text(other.seconds)}: {name}"
