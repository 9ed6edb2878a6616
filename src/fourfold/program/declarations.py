"""Programs against what each of their instructions must declare: the verifier trusts no program's own word for it.

The other walks follow the names declared here; a program that hid a read, a smaller collective or a smaller workspace would
otherwise fool them.
"""

from fourfold.layout.mesh import ALL_AXES, axes_name
from fourfold.model.work import Collective
from fourfold.program.buffers import values
from fourfold.program.capabilities import all_declared, buffer_bytes, declared_resident
from fourfold.program.declared import Declared
from fourfold.program.fault import Fault
from fourfold.program.instruction import Instruction
from fourfold.program.opcode import GROUP, SHARDS
from fourfold.program.ops import Op
from fourfold.program.pattern import Pattern
from fourfold.program.program import Program
from fourfold.program.sizes import saved_parts
from fourfold.program.view import RankView


def check_declarations(rank: int, program: Program, view: RankView) -> list[Fault]:
    """Residents, buffer sizes, and every instruction against what it must declare. Instructions that differ by their microbatch
    alone must declare the same: the first of a pattern is checked for all, and where it is wrong, they are."""
    faults = _check_buffers(rank, program, view)
    wrong = {
        pattern
        for pattern, microbatches in program.steps.microbatches.items()
        if _problems(pattern.of(microbatches[0]), program.kind, view)
        or not _known_microbatches(pattern, microbatches, view)
    }
    if wrong:
        for index, (pattern, m) in enumerate(program.steps.steps):
            if pattern in wrong:
                step = program.instructions[index]
                faults += [
                    Fault(rank, index, step, *problem) for problem in _problems(pattern.of(m), program.kind, view)
                ]
    return faults


def _problems(step: Instruction, kind: str, view: RankView) -> list[tuple[str, str]]:
    """The problems of the instruction's declaration, and their repairs."""
    problems = [
        (
            f"a collective over unknown axis {axis!r} of {collective.axes!r}",
            f"name axes of the mesh: {', '.join(ALL_AXES)}",
        )
        for collective in step.collectives
        for axis in collective.axes.split("+")
        if axis not in ALL_AXES
    ]
    if step.op.info.is_silent:
        allowed = [Declared()]
    elif not _known_segment(step, view) or not _known_microbatch(step, view):
        return [*problems, ("names a segment or a microbatch that the run has not", "drop it")]
    else:
        allowed = all_declared(step, kind, view)
    problem = _difference(step, allowed) or _stream_problem(step, view)
    return [*problems, *([problem] if problem else [])]


def _known_microbatches(pattern: Pattern, microbatches: list[int | None], view: RankView) -> bool:
    number = view.spec.layout.num_microbatches
    return pattern.op is Op.WAIT or microbatches[0] is None or max(m or 0 for m in microbatches) < number


def resident_buffers(kind: str, view: RankView) -> set[str]:
    """Buffers that are live before and after a program of this kind."""
    state = ["optimizer", *(["master"] if view.spec.mixed else [])] if kind == "train" else []
    units = declared_resident(view, {f"{prefix}/{unit}" for unit in view.flats for prefix in state})
    return {"rope", *units, *map(values, view.flats.values()), *(f"router/{s.name}" for s in view.moe_segments)}


def _check_buffers(rank: int, program: Program, view: RankView) -> list[Fault]:
    faults = []
    for kind in program.buffer_kinds:
        try:
            expected = buffer_bytes(view, kind.example)
        except KeyError:
            problem = f"buffer {kind.example} belongs to no segment of the model"
            faults.append(Fault(rank, 0, None, problem, "remove it"))
            continue
        if kind.bytes != expected:
            problem = f"buffer {kind.example} is declared with {kind.bytes} bytes"
            faults.append(Fault(rank, 0, None, problem, f"it has {expected}"))
    if program.saved_parts != saved_parts(view, program.kind):
        problem = "states other parts of what segments save than they have"
        faults.append(Fault(rank, 0, None, problem, "write the lines `saves` as lowering does"))
    resident = resident_buffers(program.kind, view)
    for buffer in sorted(resident - set(program.resident)):
        faults.append(Fault(rank, 0, None, f"{buffer} outlives the step", "declare it `resident`"))
    for buffer in sorted(set(program.resident) - resident):
        faults.append(Fault(rank, 0, None, f"{buffer} does not outlive the step", "drop its line `resident`"))
    for buffer in _undeclared(program):
        index, user = _first_user(program, buffer)
        faults.append(Fault(rank, index, user, f"{buffer} has no declared size", f"declare `buffer {buffer} BYTES`"))
    return faults


def _undeclared(program: Program) -> list[str]:
    """Buffers that are named, and whose bytes are not stated."""
    kinds = program.buffer_kinds
    alone = {kind.text for kind in kinds if kind.microbatches is None}
    own: dict[str, set[int]] = {}
    for kind in kinds:
        own.setdefault(kind.text, set()).update(kind.microbatches or ())
    found = {buffer for buffer in program.resident if buffer not in alone and buffer not in program.buffers}
    for pattern, microbatches in program.steps.microbatches.items():
        for buffer in {*pattern.reads, *pattern.writes, *pattern.frees}:
            if buffer.own and not own.get(buffer.text, set()).issuperset(microbatches):
                found.update(name for m in microbatches if (name := buffer.of(m)) not in program.buffers)
            elif not buffer.own and buffer.text not in alone and buffer.text not in program.buffers:
                found.add(buffer.text)
    return sorted(found)


def _first_user(program: Program, buffer: str) -> tuple[int, Instruction | None]:
    for index, step in enumerate(program.instructions):
        if buffer in (*step.reads, *step.writes, *step.frees):
            return index, step
    return 0, None


def _known_segment(step: Instruction, view: RankView) -> bool:
    if step.segment is None:
        return True
    names = step.op.info.names
    if names == "segment" or (names == "segment or unit" and step.microbatch is not None):
        return any(segment.name == step.segment for segment in view.segments)
    return step.segment in (view.stages.segments if names == "transfer" else view.flats)


def _known_microbatch(step: Instruction, view: RankView) -> bool:
    return step.microbatch is None or 0 <= step.microbatch < view.spec.layout.num_microbatches


def _difference(step: Instruction, allowed: list[Declared]) -> tuple[str, str] | None:
    """The problem and its repair, compared with the first declaration that is allowed."""
    own = Declared(tuple(sorted(step.reads)), tuple(sorted(step.writes)), step.work, step.workspace_bytes)
    if not allowed:
        return "is no part of this step", "drop it"
    if own in allowed:
        return None
    wanted = allowed[0]
    for what, mine, right in (("reads", own.reads, wanted.reads), ("writes", own.writes, wanted.writes)):
        if mine != right:
            return f"{what} {' '.join(mine) or 'nothing'}", f"it {what} {' '.join(right) or 'nothing'}"
    if own.work.collectives != wanted.work.collectives:
        return f"enters {_spoken(own.work.collectives)}", f"it enters {_spoken(wanted.work.collectives)}"
    if own.work.flops != wanted.work.flops:
        return f"declares {own.work.flops} FLOPs", f"it takes {wanted.work.flops}"
    if own.work != wanted.work:
        return (
            f"declares {len(own.work.items)} kernels and transfers",
            f"it has others, {len(wanted.work.items)} in all",
        )
    return f"declares a workspace of {own.workspace_bytes} bytes", f"it takes {wanted.workspace_bytes}"


def _stream_problem(step: Instruction, view: RankView) -> tuple[str, str] | None:
    """Collectives and transfers run on their group's stream, a reduction on that of its shards, a copy on its direction of the link
    to the host; all else on the compute stream."""
    stream = step.op.info.stream
    if stream in (GROUP, SHARDS):
        flat = view.flats[step.segment] if stream == SHARDS and step.segment else None
        stream = axes_name(flat.shard_axes) if flat and flat.zero else step.collectives[-1].axes
    if step.stream == stream:
        return None
    return f"runs on the stream {step.stream}", f"it runs on {stream}"


def _spoken(collectives: tuple[Collective, ...]) -> str:
    return (
        " and ".join(f"{c.kind} of {c.bytes} bytes over {c.axes or 'nothing'} ({c.group_size})" for c in collectives)
        or "no collective"
    )
