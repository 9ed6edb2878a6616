"""The ZeRO-3 pass (Rajbhandari et al. 2020; Zhao et al. 2023): parameters are gathered shortly before use and freed after it."""

from fourfold.layout.mesh import axes_name
from fourfold.model.work import sends
from fourfold.program.instruction import Instruction, Op
from fourfold.program.pattern import Pattern, Step
from fourfold.program.sizes import core_unit_bytes
from fourfold.program.totals import over
from fourfold.program.view import RankView


def insert_gathers(steps: list[Step], view: RankView) -> list[Step]:
    """Gather `prefetch` computations ahead, Wait at the use, Free after it; a unit needed again within that distance stays. The
    parts of a pass count as one computation."""
    if view.spec.layout.zero < 3:
        return steps
    one = view.spec.computations_per_pass
    distance = view.spec.layout.prefetch * one
    computes = [i for i, (pattern, _) in enumerate(steps) if pattern.op.is_compute]
    units = {pattern: _gathered_units(pattern, view) for pattern in {steps[i][0] for i in computes}}
    uses: dict[str, list[int]] = {}
    for position, index in enumerate(computes):
        for unit in units[steps[index][0]]:
            uses.setdefault(unit, []).append(position)
    gather_at: dict[int, list[str]] = {}
    wait_at: dict[int, list[str]] = {}
    free_after: dict[int, list[str]] = {}
    for unit, positions in uses.items():
        for first, last in _runs(positions, max(distance + 1, one)):
            gather_at.setdefault(computes[max(0, first - distance)], []).append(unit)
            wait_at.setdefault(computes[first], []).append(unit)
            free_after.setdefault(computes[last], []).append(unit)
    if not uses:
        return steps
    order = {unit: i for i, unit in enumerate(view.flats)}
    gathers = {unit: Pattern.of_first(_gather(view, unit)) for unit in uses}
    waits = {unit: gather.joined() for unit, gather in gathers.items()}
    drops = {unit: Pattern.of_first(Instruction(Op.FREE, unit, frees=(f"params/{unit}",))) for unit in uses}
    result: list[Step] = []
    for index, step in enumerate(steps):
        wanted = sorted(gather_at.get(index, ()), key=lambda u: (u not in wait_at.get(index, ()), order[u]))
        result += [(gathers[unit], None) for unit in wanted]
        result += [(waits[unit], None) for unit in wait_at.get(index, ())]
        result.append(step)
        result += [(drops[unit], None) for unit in free_after.get(index, ())]
    return result


def _gathered_units(pattern: Pattern, view: RankView) -> list[str]:
    """Units that the computation reads and that the rank does not hold whole."""
    units = [text.removeprefix("params/") for text, _ in pattern.reads if text.startswith("params/")]
    return [unit for unit in units if view.flats[unit].zero == 3]


def _runs(positions: list[int], distance: int) -> list[tuple[int, int]]:
    """Consecutive uses at most `distance` computations apart, as (first, last)."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and position - runs[-1][1] <= distance:
            runs[-1] = (runs[-1][0], position)
        else:
            runs.append((position, position))
    return runs


def _gather(view: RankView, unit: str) -> Instruction:
    axes = view.flats[unit].shard_axes
    full = over(view.spec.layout, "all_gather", axes, core_unit_bytes(view.spec, "params", view.flats[unit]))
    return Instruction(
        Op.GATHER,
        unit,
        reads=(f"shard/{unit}",),
        writes=(f"params/{unit}",),
        work=sends(full),
        stream=axes_name(axes),
    )
