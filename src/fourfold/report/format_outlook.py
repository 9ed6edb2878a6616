"""How sure a plan's best layout is: its memory, how far it is from what was measured, and why a faster one is behind it."""

from fourfold.plan.outlook import FAR
from fourfold.plan.pricing import Priced
from fourfold.plan.result import Plan
from fourfold.report.format_simulation import per_cent, seconds_text
from fourfold.report.units import format_bytes


def outlook_lines(plan: Plan) -> list[str]:
    """Nothing on a machine that was measured: there predictions are its own."""
    best, capacity = plan.best, plan.request.cluster.device.memory_bytes
    if best is None or not best.weight > 1:
        return []
    spare = format_bytes(capacity - best.memory_bytes)
    lines = [f"memory     {spare} to spare with the first; probability of running out about {_percent(best)}"]
    if best.is_tight:
        lines.append(f"tight      {_instead(plan, best)}")
    if best.distance > FAR:
        lines.append(
            f"far        no measured run is near the first (distance {best.distance:.1f}): its interval is wider"
        )
    faster = next((each for each in plan.found.best if each.seconds < best.seconds), None)
    if faster is not None:
        number = plan.found.best.index(faster) + 1
        why = f"{per_cent(best.seconds / faster.seconds - 1)} faster, and behind: {less_sure(faster, best)}"
        lines.append(f"order      {number} is {why}")
    return lines


def _percent(priced: Priced) -> str:
    return f"{100 * priced.out_of_memory:.0f} %"


def _instead(plan: Plan, best: Priced) -> str:
    """The best layout that is not tight, and what it costs."""
    other, rows = plan.found.roomy, plan.found.best
    if other is None:
        return "no layout was found that is surer to fit"
    name = str(rows.index(other) + 1) if other in rows else other.candidate.words()
    slower = f"{per_cent(other.seconds / best.seconds - 1)} slower" if other.seconds > best.seconds else "no slower"
    held = f"{format_bytes(other.memory_bytes)}, {_percent(other)}"
    return f"the best that is surer to fit ({held}) is {slower}, {seconds_text(other.seconds)}: {name}"


def less_sure(faster: Priced, best: Priced) -> str:
    """Why a faster layout has the worse score."""
    reasons = []
    if faster.out_of_memory > best.out_of_memory + 0.005:
        reasons.append(f"probability of running out of memory {_percent(faster)}")
    if faster.distance > best.distance or not reasons:
        reasons.append(f"{faster.distance - best.distance:.1f} farther from the nearest measured run")
    return ", ".join(reasons)
