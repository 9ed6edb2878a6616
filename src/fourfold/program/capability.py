"""The record by which a capability states all that it adds to programs; `capabilities.py` has the one list of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fourfold.config import RunConfig
from fourfold.layout import FlatLayout
from fourfold.model.spec import Segment
from fourfold.program.buffers import BufferInfo
from fourfold.program.declared import Declared
from fourfold.program.fault import Fault
from fourfold.program.instruction import Instruction, Opcode
from fourfold.program.pattern import Pattern, Step
from fourfold.program.program import Program
from fourfold.program.schedule import Orders
from fourfold.program.spec import StepSpec
from fourfold.program.stage_map import StageMap
from fourfold.program.view import RankView


class Interleaving(Protocol):
    """Entries of ranks' orders that run in turns."""

    @property
    def places(self) -> Sequence[Sequence[int]]:
        """The place of every entry of every rank in one global order, in which each follows all that it needs."""
        ...

    def expand(self, view: RankView) -> list[list[Step]]:
        """The steps of one rank, those that run in turns together."""
        ...


class GradientWalk(Protocol):
    """The gradients' walk over one program (`gradient_flow.py`), as rules of a capability's instructions see it."""

    clipped: bool
    updated: Counter[str]

    def fault(self, index: int, message: str, fix: str) -> None:
        """Reports a fault of the instruction at `index`."""
        ...

    def reduce(self, index: int, step: Pattern) -> None:
        """Sums a unit's gradient over the axes of the instruction's collectives: an all-reduce where it lies, all others into the
        shard where they write one."""
        ...


GradientRule = Callable[[int, Pattern], None]


@dataclass(frozen=True)
class Capability:
    """A capability. All functions answer for any step, and change nothing where the step has not this capability.

    Settings: `resolve(config, spec)`: the step with what the run file states of it, or a `UserError`. `check_planned(config)`
    raises `UserError` where the planner cannot search layouts of such a run.

    Rows: `opcodes`, which lists show behind `after`; `buffers`; `uses`: kinds of its buffers that the core's operations read or
    write. `unit_bytes(spec, kind, flat)` and `segment_bytes(view, kind, segment)`: bytes of a buffer of a unit or a segment, also
    of the core's kinds where it changes them; None: as without it. `plain_bytes(view, kind)`: of a buffer of neither.

    Passes: `interleave(spec, orders, stages)`: entries that run in turns; None: none do. `into_stages(steps, view)`: puts its
    instructions among computation and transfers; `into_step(steps, view)`: into a full training step.
    `reduction(spec, flat, final)`: the instruction that sums a unit's gradient in place of REDUCE, of any microbatch or the step's
    last. `resident(spec, state)`: the buffer that an optimizer state lies in between steps.

    The verifier, which asks beside the passes: `declared(step, kind, view, allowed)`: the declarations that an instruction may
    have, from those that it may have without the capability. `declared_resident(view, states)`, likewise. `gradient_rules(walk)`:
    rules of its instructions. `check(rank, program, view)`: faults of what only it knows.

    Costs: `launches(step, view)`: operations on the device beside its work's. `axes(spec, flat)`: axes of its collectives.
    """

    name: str
    opcodes: type[Opcode] | None = None
    after: Opcode | None = None
    buffers: tuple[BufferInfo, ...] = ()
    uses: Mapping[Opcode, tuple[str, ...]] = field(default_factory=dict)
    resolve: Callable[[RunConfig, StepSpec], StepSpec] | None = None
    check_planned: Callable[[RunConfig], None] | None = None
    unit_bytes: Callable[[StepSpec, str, FlatLayout], int | None] | None = None
    segment_bytes: Callable[[RankView, str, Segment], int | None] | None = None
    plain_bytes: Callable[[RankView, str], int | None] | None = None
    interleave: Callable[[StepSpec, Orders, StageMap], Interleaving | None] | None = None
    into_stages: Callable[[list[Step], RankView], list[Step]] | None = None
    into_step: Callable[[list[Step], RankView], list[Step]] | None = None
    reduction: Callable[[StepSpec, FlatLayout, bool], Instruction | None] | None = None
    resident: Callable[[StepSpec, str], str] | None = None
    declared: Callable[[Instruction, str, RankView, list[Declared]], list[Declared]] | None = None
    declared_resident: Callable[[RankView, set[str]], set[str]] | None = None
    gradient_rules: Callable[[GradientWalk], Mapping[Opcode, GradientRule]] | None = None
    check: Callable[[int, Program, RankView], list[Fault]] | None = None
    launches: Callable[[Instruction | Pattern, RankView], int] | None = None
    axes: Callable[[StepSpec, FlatLayout], Iterable[tuple[str, ...]]] | None = None
