"""The rules for copies to the host's memory and back: what they must declare, and that each optimizer state is fetched once,
updated, and copied back once, so that the next step finds the new one."""

from fourfold.model.work import HostCopy, Work
from fourfold.program.buffers import host
from fourfold.program.declared import Declared
from fourfold.program.fault import Fault
from fourfold.program.instruction import Instruction, Op
from fourfold.program.offload.steps import OffloadOp
from fourfold.program.program import Program
from fourfold.program.sizes import core_buffer_bytes
from fourfold.program.view import RankView


def declared(step: Instruction, kind: str, view: RankView, allowed: list[Declared]) -> list[Declared]:
    """Copies of the activations of an offloaded segment, or of a unit's optimizer states."""
    if not isinstance(step.op, OffloadOp) or step.segment is None:
        return allowed
    layout, owner = view.spec.layout, step.segment or ""
    if step.microbatch is not None:
        segments = dict(zip((segment.name for segment in view.spec.segments), layout.offload, strict=False))
        held = [f"saved/{owner}/m{step.microbatch}"] if segments.get(owner) else []
        copies = view.footprint(view.stages.segments[owner]).saved_tensors
    else:
        states = ("master", "optimizer") if view.spec.mixed else ("optimizer",)
        held = [f"{state}/{owner}" for state in states] if layout.offload_optimizer else []
        copies = len(view.spec.optimizer.state) + view.spec.mixed
    if not held:
        return []
    there = [*map(host, held)]
    leaves = step.op is OffloadOp.OFFLOAD
    size = sum(core_buffer_bytes(view, buffer) for buffer in held)
    reads, writes = (held, there) if leaves else (there, held)
    return [Declared(tuple(sorted(reads)), tuple(sorted(writes)), Work((HostCopy(leaves, size, copies),)))]


def declared_resident(view: RankView, states: set[str]) -> set[str]:
    """Optimizer states that leave the device lie in the host's memory between steps."""
    return {*map(host, states)} if view.spec.layout.offload_optimizer else states


def check_state_copies(rank: int, program: Program, view: RankView) -> list[Fault]:
    """The faults of one training step; none where states stay on the device. That buffers are there is for the buffers' walk."""
    if program.kind != "train" or not view.spec.layout.offload_optimizer:
        return []
    faults: list[Fault] = []
    updated: set[str] = set()
    copied: dict[tuple[OffloadOp, str], int] = {}
    for index, (pattern, m) in enumerate(program.steps.steps):
        unit = pattern.segment or ""
        if pattern.op is Op.UPDATE:
            updated.add(unit)
        if not isinstance(pattern.op, OffloadOp) or m is not None:
            continue
        if copied.setdefault((pattern.op, unit), index) != index:
            faults.append(Fault.at(rank, program, index, f"the states of {unit} are copied twice", "drop one"))
        elif (unit in updated) != (pattern.op is OffloadOp.OFFLOAD):
            when = "before" if pattern.op is OffloadOp.OFFLOAD else "after"
            problem, fix = (
                f"the states of {unit} are copied {when} their update",
                f"move it to the other side of `U {unit}`",
            )
            faults.append(Fault.at(rank, program, index, problem, fix))
    last = len(program.instructions) - 1
    for unit in view.flats:
        if (OffloadOp.OFFLOAD, unit) not in copied:
            fix = f"add `{OffloadOp.OFFLOAD.value} {unit}` behind `U {unit}`"
            faults.append(Fault.at(rank, program, last, f"the host never gets the updated states of {unit}", fix))
    return faults
