"""The gradients' walk: every microbatch passes every segment once, and every contribution to a gradient is summed over every
data axis exactly once, then used once.

Each contribution is followed from the backward that makes it through the buffers it moves in.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from fourfold.program.capabilities import BY_LETTER, OPCODES, gradient_rules
from fourfold.program.capability import GradientRule
from fourfold.program.contributions import Held, Source, bits, scatter, sources, sum_over
from fourfold.program.declared import compared_buffers
from fourfold.program.fault import Fault
from fourfold.program.instruction import Instruction
from fourfold.program.opcode import Opcode
from fourfold.program.ops import Op
from fourfold.program.pattern import Pattern
from fourfold.program.program import Program
from fourfold.program.segment_passes import SegmentPasses
from fourfold.program.totals import data_axes, loss_axes
from fourfold.program.view import RankView

_NEEDED = {
    part: sent
    for part in OPCODES
    for sent in OPCODES
    if part.is_compute and sent.is_all_to_all and part.info.part_of is not None
    if sent.info.part_of == part.info.part_of and sent.info.place == part.info.place - 1
}
"""The all-to-all that brings the rows of a part of a pass."""
_LAST_PARTS = {
    op: BY_LETTER[op.info.part_of] for op in OPCODES if op.info.part_of and op.adds_gradients and op.info.rest is None
}
"""The pass that is over with its last part."""
_EARLIER_PARTS = [op for op in OPCODES if op.info.part_of and op.adds_gradients and op.info.rest]
"""Parts of passes that contribute to a gradient before the last does."""


@dataclass
class _Flow:
    rank: int
    program: Program
    view: RankView
    full: dict[str, Held] = field(default_factory=dict)
    shard: dict[str, Held] = field(default_factory=dict)
    unwritten: dict[str, Instruction] = field(default_factory=dict)
    """Units whose full gradient holds parts that nothing has written since its allocation -> the pass that allocated it."""
    counts: int = 0
    counted: bool = False
    loss_sums: int = 0
    balances: int = 0
    tied: int = 0
    checksums: int = 0
    begun: set[str] = field(default_factory=set)
    """Units that have got a gradient."""
    repeatable: dict[str, int] = field(default_factory=dict)
    """Segments whose first backward begins all gradients that it adds to, with its microbatch."""
    reported: set[str] = field(default_factory=set)
    clipped: bool = False
    updated: Counter[str] = field(default_factory=Counter)
    gathered_updates: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.passes = SegmentPasses(self.program, self.view)
        self.rules: dict[Opcode, GradientRule] = {op: partial(take, self) for op, take in _TAKES.items()}
        self.rules.update(gradient_rules(self))

    def fault(self, index: int, message: str, fix: str) -> None:
        self.faults.append(Fault.at(self.rank, self.program, index, message, fix))

    def step(self, index: int, step: Pattern, m: int | None) -> None:
        if (rule := self.rules.get(step.op)) is not None:
            rule(index, step)
        elif step.op.is_all_to_all and m is not None:
            if not self.passes.add(step.op, step.segment or "", m):
                self.fault(index, f"{step.of(m).short} runs twice", "drop one")
        elif step.op.is_compute and m is not None:
            self.compute(index, step, m)
        for freed, _ in step.frees:
            kind, _, unit = freed.partition("/")
            if kind in ("grad", "grad_shard"):
                (self.full if kind == "grad" else self.shard).pop(unit, None)
            if kind == "grad":
                self.unwritten.pop(unit, None)

    def _join(self, _: int, step: Pattern) -> None:
        self.counted |= step.handle == Op.COUNT.value

    def _clip(self, index: int, _: Pattern) -> None:
        if self.clipped:
            self.fault(index, "the gradient norm is taken twice", "drop one")
        self.clipped = True
        for unit in self.view.flats:
            self._check_complete(index, unit)

    def _gather_update(self, index: int, step: Pattern) -> None:
        unit = step.segment or ""
        self.gathered_updates[unit] += 1
        if not self.updated[unit]:
            self.fault(index, f"{unit} is gathered before its update", "move it after the Update")

    def _checksum(self, index: int, _: Pattern) -> None:
        self.checksums += 1
        if self.updated:
            self.fault(index, "compares what an update has changed already", "move `H` before the updates")

    def _count(self, _: int, __: Pattern) -> None:
        self.counts += 1

    def _sum_loss(self, index: int, _: Pattern) -> None:
        self.loss_sums += 1
        op = self.passes.loss_op.value
        for m in self.passes.without_loss():
            self.fault(index, f"the loss is summed without that of m{m}", f"move it after `{op} head m{m}`")
        if self.program.kind == "train":
            self._check_routed(index, "the loss is summed without the auxiliary losses of")

    def _balance(self, index: int, _: Pattern) -> None:
        self.balances += 1
        self._check_routed(index, "the experts' loads are summed without those of")

    def _check_routed(self, index: int, problem: str) -> None:
        for segment, m in self.passes.unrouted():
            self.fault(index, f"{problem} {segment} m{m}", f"move it after the backward of {segment} m{m}")

    def compute(self, index: int, step: Pattern, m: int) -> None:
        """A pass of a microbatch over a segment."""
        done = _LAST_PARTS.get(step.op, step.op)
        segment, op, bit = step.segment or "", done.value, 1 << m
        in_parts = step.op is Op.BACKWARD and not step.gradients
        if not in_parts and not self.passes.add(done, segment, m):
            self.fault(index, f"{step.of(m).short} runs twice", "drop one")
        if self.updated:
            self.fault(index, "computes after an update has changed the parameters", "move it before the updates")
        if step.op in _NEEDED and not self.passes.of(_NEEDED[step.op], segment) & bit:
            needed = f"{_NEEDED[step.op].value} {segment} m{m}"
            self.fault(index, "computes on rows that never set out", f"start and join `{needed}` before it")
        if in_parts or not step.op.adds_gradients:
            return
        if step.op is Op.REPLAY:
            self._replay(index, step, m)
            return
        if step.op is Op.BACKWARD and segment == "head" and data_axes(self.view.spec.layout) and not self.counted:
            self.fault(index, "the loss is divided before the valid targets are counted", "put `wait N` before it")
        if step.op is Op.BACKWARD_WEIGHT and not self.passes.of(Op.BACKWARD_INPUT, segment) & bit:
            self.fault(index, f"{step.of(m).short} runs before its input gradient", f"move it after `I {segment} m{m}`")
        units = step.gradients
        for unit in units:
            if not step.op.info.rest:
                self.unwritten.pop(unit, None)
            elif unit not in self.full:
                self.unwritten[unit] = step.of(m)
        if self.begun.isdisjoint(units) and segment != "embed":
            self.repeatable[segment] = m
        self.begun.update(units)
        for unit in units:
            held = self.full.setdefault(unit, {})
            key = (segment, op), ()
            held[key] = held.get(key, 0) | bit

    def _replay(self, index: int, step: Pattern, m: int) -> None:
        """Compares the gradient of one backward, as that made it."""
        alone = {((step.segment or "", Op.BACKWARD.value), ()): 1 << m}
        for written, _ in step.writes:
            if self.full.get(written[5:]) != alone:
                problem = f"compares a gradient of {written[5:]} that is not that of {step.segment} m{m} alone"
                self.fault(index, problem, f"move it behind `B {step.segment} m{m}`")

    def reduce(self, index: int, step: Pattern) -> None:
        """A reduction of a unit's gradient: every collective that is no all-reduce leaves a shard of the sum."""
        unit = step.segment or ""
        held = self.full.get(unit)
        if not held:
            self.fault(
                index, f"reduces {unit}, which has no gradient to reduce", "move it after the last Backward of the unit"
            )
            return
        if (begun := self.unwritten.get(unit)) is not None:
            rest = begun._replace(op=BY_LETTER[begun.op.info.rest or ""])
            problem = f"reduces {unit}, of whose gradient `{begun.short}` has written a part, and nothing the rest"
            self.fault(index, problem, f"move it after `{rest.short}`")
        into_shard = any(name.startswith("grad_shard/") for name, _ in step.writes)
        target = held
        for collective in step.work.collectives:
            more = tuple(collective.axes.split("+"))
            if into_shard and collective.kind != "all_reduce":
                target = self.shard.setdefault(unit, {})
                for segment, m in scatter(held, target, more):
                    self.fault(index, f"{segment} m{m} is added to the shard of {unit} twice", "drop one Reduce")
            else:
                sum_over(target, more)

    def _reduce_tied(self, index: int, step: Pattern) -> None:
        """Adds what both holders have: it must be whole on each, summed over all else, and is marked as summed over `tied`."""
        unit = step.segment or ""
        held, before = self._final(unit), self._wanted(unit) - Counter(["tied"])
        full = sources({key: numbers for key, numbers in held.items() if Counter(key[1]) == before})
        sum_over(held, ("tied",))
        self.tied += 1
        if lacking := self._lacking(unit, full):
            segment, m, op = lacking[0]
            fix = f"move it after the reductions of {unit}, of which `{op} {segment} m{m}` is a part"
            self.fault(index, f"the stages' gradients of {unit} are added without the whole of {segment} m{m}", fix)

    def _final(self, unit: str) -> Held:
        """Where the unit's full gradient comes to lie."""
        return (self.shard if self.view.flats[unit].zero >= 2 else self.full).get(unit, {})

    def _wanted(self, unit: str) -> Counter[str]:
        """How often a contribution must be summed over each axis: data axes, partial sums, the stages that share it."""
        flat = self.view.flats[unit]
        sums = [axis for axis, _, _ in flat.sums]
        return Counter([*flat.gradient_axes, *sums, *(["tied"] if unit == self.view.tied_unit else [])])

    def _update(self, index: int, step: Pattern) -> None:
        unit = step.segment or ""
        self.updated[unit] += 1
        if self.updated[unit] > 1:
            self.fault(index, f"{unit} is updated twice", "drop one Update")
            return
        if not self.clipped:
            self.fault(index, f"{unit} is updated before the gradient norm is known", "move `C` before the updates")
        self._check_complete(index, unit)

    def _check_complete(self, index: int, unit: str) -> None:
        """Everything that the unit's gradient is made of is in it, summed once over every data axis. Reported once a unit."""
        if unit in self.reported:
            return
        before = len(self.faults)
        held = self._final(unit)
        for segment, m, op in self._lacking(unit, sources(held)):
            self.fault(index, f"the gradient of {unit} lacks {segment} m{m}", f"reduce it after `{op} {segment} m{m}`")
        wanted = self._wanted(unit)
        for ((segment, _), summed), numbers in held.items():
            axes = Counter(summed)
            if numbers and axes != wanted:
                wrong = sorted((wanted - axes) or (axes - wanted))[0]
                how = "is not summed" if (wanted - axes)[wrong] else "is summed more than once"
                self.fault(
                    index,
                    f"the gradient of {unit} from {segment} m{next(bits(numbers))} {how} over {wrong}",
                    f"reduce {unit} exactly once over {' and '.join(wanted) or 'nothing'} after its last Backward",
                )
                break
        if len(self.faults) > before:
            self.reported.add(unit)

    def _lacking(self, unit: str, there: dict[Source, int]) -> list[tuple[str, int, str]]:
        """Contributions (segment, microbatch, operation) that the unit's gradient is made of and that are not there."""
        found = []
        for segment in (s.name for s in self.view.segments if unit in s.units):
            every, halved = self.passes.every, self.passes.halved(segment)
            in_parts = [(op.value, self.passes.of(op, segment)) for op in _EARLIER_PARTS]
            for op, wanted in (("B", every & ~halved), *in_parts, ("I", every & halved), ("W", every & halved)):
                found += [(segment, m, op) for m in bits(wanted & ~there.get((segment, op), 0))]
        return sorted(found)

    def finish(self) -> None:
        last = len(self.program.instructions) - 1
        for each in self.view.segments:
            for problem, fix in self.passes.problems(each):
                self.fault(last, problem, fix)
        counts, sums = int(bool(data_axes(self.view.spec.layout))), int(bool(loss_axes(self.view.spec)))
        balances, tied, checksums = 0, 0, 0
        if self.program.kind == "train":
            checksums = int(bool(compared_buffers(self.view)))
            balances, tied = int(self.view.spec.model.num_experts > 0), int(self.view.tied_unit is not None)
        for what, short, times, wanted in (
            ("valid targets are summed", "N", self.counts, counts),
            ("loss is summed", "Y", self.loss_sums, sums),
            ("experts' loads are summed", "E", self.balances, balances),
            ("replicas' checksums are compared", "H", self.checksums, checksums),
            ("tied gradient is summed", f"T {self.view.tied_unit}", self.tied, tied),
        ):
            if times != wanted:
                self.fault(last, f"the {what} {times} times over the ranks", f"have `{short}` {wanted} times")
        for segment, m in self.repeatable.items() if self.view.spec.replay else ():
            if self.passes.of(Op.REPLAY, segment) != 1 << m:
                self.fault(last, f"`J {segment} m{m}` never runs", f"add it behind `B {segment} m{m}`")
        for unit in self.view.flats if self.program.kind == "train" else ():
            if not self.updated[unit]:
                self.fault(last, f"{unit} is never updated", f"add `U {unit}`")
            wanted = 1 if self.view.flats[unit].zero in (1, 2) else 0
            if self.gathered_updates[unit] != wanted:
                self.fault(
                    last,
                    f"{unit} is gathered {self.gathered_updates[unit]} times after its update",
                    f"gather it {wanted} times",
                )


_TAKES: dict[Op, Callable[[_Flow, int, Pattern], None]] = {
    Op.WAIT: _Flow._join,
    Op.REDUCE: _Flow.reduce,
    Op.CLIP_NORM: _Flow._clip,
    Op.UPDATE: _Flow._update,
    Op.PARAMETER_ALL_GATHER: _Flow._gather_update,
    Op.REDUCE_TIED: _Flow._reduce_tied,
    Op.BALANCE: _Flow._balance,
    Op.CHECKSUM: _Flow._checksum,
    Op.COUNT: _Flow._count,
    Op.SUM_LOSS: _Flow._sum_loss,
}
"""The rules of operations that gradients take part in, beside passes over segments and their all-to-alls."""


def check_gradients(rank: int, program: Program, view: RankView) -> list[Fault]:
    """The gradients' laws of one training step; of an evaluation, that every loss is in the sum."""
    flow = _Flow(rank, program, view)
    keeping = [p for p in program.steps.microbatches if not any(text.startswith("grad") for text, _ in p.frees)]
    silent = {
        p
        for p in keeping
        if not (p.op in flow.rules or p.op.is_compute or p.op.is_all_to_all)
        or (p.op is Op.WAIT and p.handle != Op.COUNT.value)
    }
    computing = {p for p in keeping if p.op.is_compute}
    for index, (pattern, m) in enumerate(program.steps.steps):
        if pattern in silent:
            continue
        if pattern in computing and m is not None:
            flow.compute(index, pattern, m)
        else:
            flow.step(index, pattern, m)
    flow.finish()
    return flow.faults
