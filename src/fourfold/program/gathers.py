"""The ZeRO-3 pass (Rajbhandari et al. 2020; Zhao et al. 2023): parameters are gathered shortly before use and freed after it."""

from fourfold.layout.mesh import axes_name
from fourfold.model.work import sends
from fourfold.program.instruction import COMPUTE_OPS, Instruction, Op
from fourfold.program.sizes import unit_bytes
from fourfold.program.update import over
from fourfold.program.view import RankView


def insert_gathers(steps: list[Instruction], view: RankView) -> list[Instruction]:
    """Gather `prefetch` computations ahead, Wait at the use, Free after it; a unit needed again within that distance stays."""
    if view.spec.layout.zero < 3:
        return steps
    distance = view.spec.layout.prefetch
    computes = [i for i, step in enumerate(steps) if step.op in COMPUTE_OPS]
    uses: dict[str, list[int]] = {}
    for position, index in enumerate(computes):
        for unit in _gathered_units(steps[index], view):
            uses.setdefault(unit, []).append(position)
    gather_at: dict[int, list[str]] = {}
    wait_at: dict[int, list[str]] = {}
    free_after: dict[int, list[str]] = {}
    for unit, positions in uses.items():
        for first, last in _runs(positions, distance + 1):
            gather_at.setdefault(computes[max(0, first - distance)], []).append(unit)
            wait_at.setdefault(computes[first], []).append(unit)
            free_after.setdefault(computes[last], []).append(unit)
    if not uses:
        return steps
    order = {unit: i for i, unit in enumerate(view.flats)}
    gathers = {unit: _gather(view, unit) for unit in uses}
    result: list[Instruction] = []
    for index, step in enumerate(steps):
        wanted = sorted(gather_at.get(index, ()), key=lambda u: (u not in wait_at.get(index, ()), order[u]))
        result += [gathers[unit] for unit in wanted]
        result += [Instruction(Op.WAIT, handle=f"G {unit}") for unit in wait_at.get(index, ())]
        result.append(step)
        result += [Instruction(Op.FREE, unit, frees=(f"params/{unit}",)) for unit in free_after.get(index, ())]
    return result


def _gathered_units(step: Instruction, view: RankView) -> list[str]:
    """Units that the computation reads and that the rank does not hold whole."""
    units = [read.removeprefix("params/") for read in step.reads if read.startswith("params/")]
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
    full = over(view.spec.layout, "all_gather", axes, unit_bytes(view.spec, "params", view.flats[unit]))
    return Instruction(
        Op.GATHER,
        unit,
        reads=(f"shard/{unit}",),
        writes=(f"params/{unit}",),
        work=sends(full),
        stream=axes_name(axes),
    )
