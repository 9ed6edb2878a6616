"""The gradients' walk: every microbatch passes every segment once, and every contribution to a gradient is summed over every
data axis exactly once, then used once.

A contribution is (segment, microbatch). Each is followed from the backward that makes it through the buffers it moves in, with a
count of the reductions over each axis that it has been through.
"""

from collections import Counter
from dataclasses import dataclass, field

from fourfold.program.buffers import Lowering
from fourfold.program.fault import Fault
from fourfold.program.instruction import Instruction, Op, Program

Contribution = tuple[str, int]
Held = dict[Contribution, Counter[str]]


@dataclass
class _Flow:
    rank: int
    program: Program
    facts: Lowering
    whole: dict[str, Held] = field(default_factory=dict)
    shard: dict[str, Held] = field(default_factory=dict)
    passed: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    counts: int = 0
    counted: bool = False
    loss_sums: int = 0
    reported: set[str] = field(default_factory=set)
    clipped: bool = False
    updated: Counter[str] = field(default_factory=Counter)
    published: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, index: int, message: str, fix: str) -> None:
        self.faults.append(Fault.at(self.rank, self.program, index, message, fix))

    @property
    def _loss_op(self) -> str:
        """The head's operation that gives the loss."""
        return (Op.BACKWARD if self.program.kind == "train" else Op.FORWARD).value

    def step(self, index: int, step: Instruction) -> None:
        if step.op in (Op.FORWARD, Op.BACKWARD, Op.RECOMPUTE, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT):
            self._compute(index, step)
        elif step.op is Op.REDUCE:
            self._reduce(index, step)
        elif step.op is Op.CLIP_NORM:
            if self.clipped:
                self.fault(index, "the gradient norm is taken twice", "drop one")
            self.clipped = True
            for unit in self.facts.flats:
                self._check_complete(index, unit)
        elif step.op is Op.UPDATE:
            self._update(index, step)
        elif step.op is Op.PUBLISH:
            unit = step.segment or ""
            self.published[unit] += 1
            if not self.updated[unit]:
                self.fault(index, f"{unit} is published before its update", "move it after the Update")
        elif step.op is Op.COUNT:
            self.counts += 1
        elif step.op is Op.SUM_LOSS:
            self.loss_sums += 1
            for m in range(self.facts.layout.num_microbatches):
                if not self.passed[self._loss_op, "head", m]:
                    self.fault(
                        index, f"the loss is summed without that of m{m}", f"move it after `{self._loss_op} head m{m}`"
                    )
        elif step.op is Op.WAIT and step.handle == Op.COUNT.value:
            self.counted = True
        for freed in step.frees:
            if freed.startswith("grad/"):
                self.whole.pop(freed.removeprefix("grad/"), None)

    def _compute(self, index: int, step: Instruction) -> None:
        segment, m = step.segment or "", step.microbatch if step.microbatch is not None else -1
        self.passed[step.op.value, segment, m] += 1
        if self.passed[step.op.value, segment, m] > 1:
            self.fault(index, f"{step.short} runs twice", "drop one")
        if any(self.updated.values()):
            self.fault(index, "computes after an update has changed the parameters", "move it before the updates")
        if step.op is Op.BACKWARD and segment == "head" and self.facts.data_axes and not self.counted:
            self.fault(index, "the loss is divided before the valid targets are counted", "put `wait N` before it")
        for written in step.writes:
            if written.startswith("grad/"):
                self.whole.setdefault(written.removeprefix("grad/"), {})[segment, m] = Counter()

    def _reduce(self, index: int, step: Instruction) -> None:
        unit = step.segment or ""
        held = self.whole.get(unit)
        if not held:
            self.fault(
                index, f"reduces {unit}, which has no gradient to reduce", "move it after the last Backward of the unit"
            )
            return
        target = held
        if any(name.startswith("grad_shard/") for name in step.writes):
            target = self.shard.setdefault(unit, {})
        moving = held
        for collective in step.collectives:
            if target is not held and collective.kind == "reduce_scatter":
                for key, axes in moving.items():
                    if key in target:
                        self.fault(
                            index, f"{key[0]} m{key[1]} is added to the shard of {unit} twice", "drop one Reduce"
                        )
                    target[key] = axes + Counter(collective.axes.split("+"))
            else:
                for axes in target.values():
                    axes.update(collective.axes.split("+"))

    def _update(self, index: int, step: Instruction) -> None:
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
        held = (self.shard if self.facts.zero >= 2 else self.whole).get(unit, {})
        for segment, m in sorted(self._expected(unit) - held.keys()):
            self.fault(index, f"the gradient of {unit} lacks {segment} m{m}", f"reduce it after `B {segment} m{m}`")
        wanted = Counter(self.facts.data_axes)
        for (segment, m), axes in held.items():
            if axes != wanted:
                wrong = sorted((wanted - axes) or (axes - wanted))[0]
                how = "is not summed" if (wanted - axes)[wrong] else "is summed more than once"
                self.fault(
                    index,
                    f"the gradient of {unit} from {segment} m{m} {how} over {wrong}",
                    f"reduce {unit} exactly once over {'+'.join(self.facts.data_axes) or 'nothing'} after its last Backward",
                )
                break
        if len(self.faults) > before:
            self.reported.add(unit)

    def _expected(self, unit: str) -> set[Contribution]:
        microbatches = range(self.facts.layout.num_microbatches)
        return {(s.name, m) for s in self.facts.segments if unit in s.units for m in microbatches}

    def finish(self) -> None:
        last = len(self.program.instructions) - 1
        training = self.program.kind == "train"
        for segment in self.facts.segments:
            ops = ["F"] if not training else ["B"] if segment.kind == "head" else ["F", "B"]
            for m in range(self.facts.layout.num_microbatches):
                for op in ops:
                    if not self.passed[op, segment.name, m]:
                        self.fault(last, f"`{op} {segment.name} m{m}` never runs", "add it")
        wanted = 1 if self.facts.data_axes else 0
        for what, short, times in (("valid targets are", "N", self.counts), ("loss is", "Y", self.loss_sums)):
            if times != wanted:
                self.fault(last, f"the {what} summed {times} times over the ranks", f"have `{short}` {wanted} times")
        for unit in self.facts.flats if training else ():
            if not self.updated[unit]:
                self.fault(last, f"{unit} is never updated", f"add `U {unit}`")
            wanted = 1 if self.facts.zero in (1, 2) else 0
            if self.published[unit] != wanted:
                self.fault(last, f"{unit} is published {self.published[unit]} times", f"publish it {wanted} times")


def check_gradients(rank: int, program: Program, facts: Lowering) -> list[Fault]:
    """The gradients' laws of one training step; of an evaluation, that every loss is in the sum."""
    flow = _Flow(rank, program, facts)
    for index, step in enumerate(program.instructions):
        flow.step(index, step)
    flow.finish()
    return flow.faults
