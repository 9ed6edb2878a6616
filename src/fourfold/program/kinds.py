"""Kinds of instructions: the names under which predicted and measured times are compared."""

from collections.abc import Mapping, Sequence

from fourfold.model.spec import Segment
from fourfold.program.instruction import Instruction, Op
from fourfold.program.program import Program


def instruction_kinds(program: Program, segments: Mapping[str, Segment]) -> tuple[str, ...]:
    """The kind of every instruction: `forward block`, `update block experts`, `wait for recv activation`, `clip norm`.

    Segments of a kind share a name; a WAIT is named after what it joins. `segments`: by name, the program's own.
    """
    latest: dict[str, Instruction] = {}
    kinds = []
    for step in program.instructions:
        latest[step.short] = step
        if step.op is Op.WAIT:
            kinds.append(f"wait for {_kind(latest[step.handle or ''], segments)}")
        else:
            kinds.append(_kind(step, segments))
    return tuple(kinds)


def seconds_by_kind(kinds: Sequence[str], ends: Sequence[float]) -> dict[str, list[float]]:
    """Seconds of every instruction, by kind. `ends`: when each was over; the first began at 0."""
    found: dict[str, list[float]] = {}
    before = 0.0
    for kind, end in zip(kinds, ends, strict=True):
        found.setdefault(kind, []).append(end - before)
        before = end
    return found


def _kind(step: Instruction, segments: Mapping[str, Segment]) -> str:
    op = step.op.words
    if step.op.is_transfer:
        return op
    name, _, part = (step.segment or "").partition(".")
    segment = segments.get(name)
    if any("dispatched/" in each for each in step.writes) and step.op.is_compute:
        part = "until dispatch"
    return " ".join(word for word in (op, segment.kind if segment else name, part) if word)
