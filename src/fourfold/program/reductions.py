"""The reduction pass: each unit's gradients are summed as soon as their last contribution is there, while backward goes on.

ZeRO-0 and 1 keep full gradients and reduce once a step; ZeRO-2 and 3 reduce every microbatch into the shard and drop the rest.
With HSDP the shards are summed over the replicas once a step. Partial sums of tensor-parallel ranks are summed over these ranks
first. A reduction that holds buffers is joined before later ones start, so that as many exist as it has phases; one that works in
place is joined at the end.
"""

from collections.abc import Callable

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.layout.mesh import axes_name
from fourfold.model.work import Collective, sends
from fourfold.program.instruction import Instruction
from fourfold.program.ops import Op
from fourfold.program.pattern import Name, Pattern, Step
from fourfold.program.sizes import core_unit_bytes
from fourfold.program.spec import StepSpec
from fourfold.program.totals import over
from fourfold.program.view import RankView

Reduction = Callable[[StepSpec, FlatLayout, bool], Instruction | None]
"""The instruction that sums a unit's gradient, of any microbatch or (True) the step's last."""


def insert_reductions(steps: list[Step], view: RankView, reduction: Reduction) -> list[Step]:
    """A reduction after the last writer of `grad/U` (of the step, or of each microbatch), Wait as soon as overlap allows."""
    last_writer = _last_writers(steps, view)
    made = view.reductions
    for each in (each for found in last_writer.values() for each in found):
        if each not in made:
            made[each] = _joined(reduction(view.spec, view.flats[each[0]], each[1]))
    begin = min(last_writer, default=len(steps))
    result = steps[:begin]
    in_flight: list[tuple[Name, Step]] = []
    for index, step in enumerate(steps[begin:], begin):
        writes = step[0].writes if in_flight and step[0].op.is_backward else ()
        while any(reduced in writes for reduced, _ in in_flight):
            result.append(in_flight.pop(0)[1])
        result.append(step)
        for each in last_writer.get(index, ()):
            found = made[each]
            if found is None:
                continue
            reduce, wait = found
            while wait.frees and len(in_flight) >= len(reduce.work.collectives):
                result.append(in_flight.pop(0)[1])
            result.append((reduce, step[1]))
            in_flight.append((reduce.reads[0], (wait, step[1])))
    return result + [wait for _, wait in in_flight]


def _last_writers(steps: list[Step], view: RankView) -> dict[int, list[tuple[str, bool]]]:
    """Index of a step -> the units whose gradient is complete after it, of a microbatch or (True) of the step."""
    units = {Name(f"grad/{unit}", False): unit for unit in view.flats}
    backward = [each for each in dict.fromkeys(pattern for pattern, _ in steps) if each.op.adds_gradients]
    written = {each: [units[buffer] for buffer in each.writes if buffer in units] for each in backward}
    final = dict.fromkeys((unit for found in written.values() for unit in found), -1)
    missing = set(final)
    for index in reversed(range(len(steps))):
        for unit in missing.intersection(written.get(steps[index][0], ())):
            missing.remove(unit)
            final[unit] = index
        if not missing:
            break
    last = {(unit, None if view.flats[unit].zero < 2 else steps[index][1]): index for unit, index in final.items()}
    sharded = {each: [unit for unit in found if view.flats[unit].zero >= 2] for each, found in written.items()}
    if any(sharded.values()):
        begun: dict[tuple[str, int | None], int] = {}
        for index, (pattern, m) in enumerate(steps):
            for unit in sharded.get(pattern, ()):
                last[unit, m] = index
                begun.setdefault((unit, m), index)
        if view.spec.overlaps_experts:
            last = _once_for_both(last, begun)
    result: dict[int, list[tuple[str, bool]]] = {}
    for (unit, _), index in last.items():
        result.setdefault(index, []).append((unit, final[unit] == index))
    return result


def _once_for_both(
    last: dict[tuple[str, int | None], int], begun: dict[tuple[str, int | None], int]
) -> dict[tuple[str, int | None], int]:
    """Without the contributions that are complete while another microbatch's are in the making: one reduction takes both."""
    making: dict[str, list[tuple[int, int]]] = {}
    for key, end in last.items():
        making.setdefault(key[0], []).append((begun.get(key, end), end))
    return {(unit, m): at for (unit, m), at in last.items() if not any(start < at < end for start, end in making[unit])}


def reduce(spec: StepSpec, flat: FlatLayout, final: bool) -> Instruction | None:
    """The core's `Reduction`; None where no other rank has a part of this gradient."""
    full, staging, shard = f"grad/{flat.unit}", f"reduce/{flat.unit}", f"grad_shard/{flat.unit}"
    zero, layout = flat.zero, spec.layout
    collectives = partial_sums(spec, flat)
    if zero == 0 and flat.gradient_axes:
        collectives += (over(layout, "all_reduce", flat.gradient_axes, core_unit_bytes(spec, "grad", flat)),)
    elif zero > 0:
        collectives += (over(layout, "reduce_scatter", flat.shard_axes, core_unit_bytes(spec, "grad", flat)),)
        replicas = layout.active(("dp_replicate",))
        if final and replicas:
            collectives += (over(layout, "all_reduce", replicas, core_unit_bytes(spec, "grad_shard", flat)),)
    if not collectives:
        return None
    writes: tuple[str, ...] = (shard, staging) if zero >= 2 else (full, staging)
    if core_unit_bytes(spec, "reduce", flat) == 0:
        writes = writes[:1]
    stream = axes_name(flat.shard_axes) if zero > 0 else collectives[-1].axes
    return Instruction(Op.REDUCE, flat.unit, 0, reads=(full,), writes=writes, work=sends(*collectives), stream=stream)


def _joined(reduction: Instruction | None) -> tuple[Pattern, Pattern] | None:
    """Pattern of a reduction, and of its Wait, which frees what was staged, and the full gradient where a shard has the sum."""
    if reduction is None:
        return None
    into_shard = any(each.startswith("grad_shard/") for each in reduction.writes)
    staging = tuple(each for each in reduction.writes if not each.startswith("grad"))
    started = Pattern.of_first(reduction)
    return started, started.joined((*(reduction.reads if into_shard else ()), *staging))


def partial_sums(spec: StepSpec, flat: FlatLayout) -> tuple[Collective, ...]:
    """The sums over tensor-parallel ranks of the unit's gradients that are partial on each of them."""
    size = DTYPE_BYTES[spec.gradients]
    return tuple(over(spec.layout, "all_reduce", (axis,), (end - start) * size) for axis, start, end in flat.sums)
