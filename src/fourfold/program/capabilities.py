"""The one list of capabilities, and the tables of all operations and buffers, made from it and from the core.

To add a capability, write its room (`program/NAME/`, `runtime/NAME.py`), and add its record here and its handlers to
`runtime/capabilities.py`. The core's passes import no room: they are given what they ask the capabilities for.
"""

from collections.abc import Iterable, Mapping
from functools import reduce as fold

from fourfold.config import RunConfig
from fourfold.layout import FlatLayout
from fourfold.program.buffers import CORE_BUFFERS, device
from fourfold.program.capability import Capability, GradientRule, GradientWalk, Interleaving
from fourfold.program.compression import COMPRESSION
from fourfold.program.declared import Declared, declared
from fourfold.program.fault import Fault
from fourfold.program.instruction import Instruction, Op, Opcode
from fourfold.program.muon import MUON
from fourfold.program.narrow import NARROW
from fourfold.program.offload import OFFLOAD
from fourfold.program.overlap import OVERLAP
from fourfold.program.pattern import Pattern, Step
from fourfold.program.program import Program
from fourfold.program.reductions import reduce
from fourfold.program.sampling import SAMPLING
from fourfold.program.schedule import Orders
from fourfold.program.sizes import core_buffer_bytes, core_unit_bytes
from fourfold.program.spec import StepSpec
from fourfold.program.stage_map import StageMap
from fourfold.program.view import RankView

CAPABILITIES: tuple[Capability, ...] = (OVERLAP, MUON, OFFLOAD, COMPRESSION, NARROW, SAMPLING)
"""In the order in which their passes run."""


def _opcodes() -> tuple[Opcode, ...]:
    found: list[Opcode] = []
    for op in Op:
        found.append(op)
        found += [own for each in CAPABILITIES if each.opcodes and each.after is op for own in each.opcodes]
    return tuple(found)


OPCODES = _opcodes()
"""All operations, in the order in which lists show them."""
BY_LETTER = {op.info.letter: op for op in OPCODES}
assert len(BY_LETTER) == len(OPCODES), "two operations have one letter"
BUFFERS = CORE_BUFFERS | {row.kind: row for each in CAPABILITIES for row in each.buffers}
"""All kinds of buffers."""


def check_planned(config: RunConfig) -> None:
    """Raises `UserError` where the planner cannot search layouts of such a run."""
    for each in CAPABILITIES:
        if each.check_planned:
            each.check_planned(config)


def unit_bytes(spec: StepSpec, kind: str, flat: FlatLayout) -> int:
    """Size of one of a unit's buffers. Raises `KeyError` for a kind that units have not."""
    for each in CAPABILITIES:
        if each.unit_bytes and (size := each.unit_bytes(spec, kind, flat)) is not None:
            return size
    return core_unit_bytes(spec, kind, flat)


def buffer_bytes(view: RankView, name: str) -> int:
    """Size of any buffer of a rank. Raises `KeyError` for a name that the rank has not."""
    kind, _, rest = device(name).partition("/")
    flat, segment = view.flats.get(rest), view.stages.segments.get(rest.partition("/")[0])
    for each in CAPABILITIES:
        found = [each.unit_bytes(view.spec, kind, flat)] if each.unit_bytes and flat else []
        found += [each.segment_bytes(view, kind, segment)] if each.segment_bytes and segment else []
        found += [each.plain_bytes(view, kind)] if each.plain_bytes and not rest else []
        for size in found:
            if size is not None:
                return size
    return core_buffer_bytes(view, name)


def interleave(spec: StepSpec, orders: Orders, stages: StageMap) -> Interleaving | None:
    """Entries of the orders that run in turns; None: none do."""
    for each in CAPABILITIES:
        if each.interleave and (found := each.interleave(spec, orders, stages)):
            return found
    return None


def into_stages(steps: list[Step], view: RankView) -> list[Step]:
    """Computation and transfers, with the capabilities' instructions."""
    return fold(lambda found, each: each(found, view), [c.into_stages for c in CAPABILITIES if c.into_stages], steps)


def into_step(steps: list[Step], view: RankView) -> list[Step]:
    """A full training step, with the capabilities' instructions."""
    return fold(lambda found, each: each(found, view), [c.into_step for c in CAPABILITIES if c.into_step], steps)


def reduction(spec: StepSpec, flat: FlatLayout, final: bool) -> Instruction | None:
    """The instruction that sums a unit's gradient; None where no other rank has a part of it."""
    for each in CAPABILITIES:
        if each.reduction and (found := each.reduction(spec, flat, final)):
            return found
    return reduce(spec, flat, final)


def resident(spec: StepSpec, state: str) -> str:
    """The buffer that an optimizer state lies in between steps."""
    return fold(lambda found, each: each(spec, found), [c.resident for c in CAPABILITIES if c.resident], state)


def all_declared(step: Instruction, kind: str, view: RankView) -> list[Declared]:
    """The declarations that an instruction may have; none: it has no place in this step."""
    allowed = declared(step, kind, view)
    if kind != "train" and not step.op.info.evaluates:
        return []
    for each in CAPABILITIES:
        allowed = each.declared(step, kind, view, allowed) if each.declared else allowed
    return allowed


def declared_resident(view: RankView, states: set[str]) -> set[str]:
    """Buffers of these optimizer states, where they lie between steps."""
    rules = [c.declared_resident for c in CAPABILITIES if c.declared_resident]
    return fold(lambda found, each: each(view, found), rules, states)


def gradient_rules(walk: GradientWalk) -> Mapping[Opcode, GradientRule]:
    """The capabilities' rules of one gradients' walk."""
    return {op: rule for c in CAPABILITIES if c.gradient_rules for op, rule in c.gradient_rules(walk).items()}


def check(rank: int, program: Program, view: RankView) -> list[Fault]:
    """Faults of what the capabilities alone know."""
    return [fault for each in CAPABILITIES if each.check for fault in each.check(rank, program, view)]


def launches(step: Instruction | Pattern, view: RankView) -> int:
    """Operations on a device that capabilities add to an instruction."""
    return sum(each.launches(step, view) for each in CAPABILITIES if each.launches)


def axes(spec: StepSpec, flats: Iterable[FlatLayout]) -> set[tuple[str, ...]]:
    """Axes of the capabilities' collectives on units."""
    return {axes for flat in flats for each in CAPABILITIES if each.axes for axes in each.axes(spec, flat)}
