"""The walk of offloaded optimizer states: fetched once, updated, and copied back once, so that the next step finds the new ones."""

from fourfold.program.fault import Fault
from fourfold.program.instruction import HOST_COPIES, Op
from fourfold.program.program import Program
from fourfold.program.view import RankView


def check_state_copies(rank: int, program: Program, view: RankView) -> list[Fault]:
    """The faults of one training step; none where states stay on the device. That buffers are there is for the buffers' walk."""
    if program.kind != "train" or not view.spec.layout.offload_optimizer:
        return []
    faults: list[Fault] = []
    updated: set[str] = set()
    copied: dict[tuple[Op, str], int] = {}
    for index, (pattern, m) in enumerate(program.steps.steps):
        unit = pattern.segment or ""
        if pattern.op is Op.UPDATE:
            updated.add(unit)
        if pattern.op not in HOST_COPIES or m is not None:
            continue
        if copied.setdefault((pattern.op, unit), index) != index:
            faults.append(Fault.at(rank, program, index, f"the states of {unit} are copied twice", "drop one"))
        elif (unit in updated) != (pattern.op is Op.OFFLOAD):
            when = "before" if pattern.op is Op.OFFLOAD else "after"
            problem, fix = (
                f"the states of {unit} are copied {when} their update",
                f"move it to the other side of `U {unit}`",
            )
            faults.append(Fault.at(rank, program, index, problem, fix))
    last = len(program.instructions) - 1
    for unit in view.flats:
        if (Op.OFFLOAD, unit) not in copied:
            fix = f"add `{Op.OFFLOAD.value} {unit}` behind `U {unit}`"
            faults.append(Fault.at(rank, program, last, f"the host never gets the updated states of {unit}", fix))
    return faults
