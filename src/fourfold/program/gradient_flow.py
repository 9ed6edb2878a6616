"""The gradients' walk: every microbatch passes every segment once, and every contribution to a gradient is summed over every
data axis exactly once, then used once.

A contribution is (segment, microbatch). Each is followed from the backward that makes it through the buffers it moves in, with a count of the
reductions over each axis that it has been through.
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
    counted: bool = False
    clipped: frozenset[str] | None = None
    updated: Counter[str] = field(default_factory=Counter)
    published: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, index: int, message: str, fix: str) -> None:
        self.faults.append(Fault(self.rank, index, self.program.instructions[index], message, fix))

    def step(self, index: int, step: Instruction) -> None:
        if step.op in (Op.FORWARD, Op.BACKWARD, Op.RECOMPUTE, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT):
            self._compute(index, step)
        elif step.op is Op.REDUCE:
            self._reduce(index, step)
        elif step.op is Op.CLIP_NORM:
            if self.clipped is not None:
                self.fault(index, "the gradient norm is taken twice", "drop one")
            self.clipped = frozenset(step.reads)
            self._check_norm(index, step)
        elif step.op is Op.UPDATE:
            self._update(index, step)
        elif step.op is Op.PUBLISH:
            unit = step.segment or ""
            self.published[unit] += 1
            if not self.updated[unit]:
                self.fault(index, f"{unit} is published before its update", "move it after the Update")
        elif step.op is Op.WAIT and step.handle == Op.COUNT.value:
            self.counted = True

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
                self.whole[unit] = {}
            else:
                for axes in target.values():
                    axes.update(collective.axes.split("+"))

    def _check_norm(self, index: int, step: Instruction) -> None:
        expected = {f"{'grad_shard' if self.facts.zero >= 2 else 'grad'}/{unit}" for unit in self.facts.flats}
        missing = sorted(expected - set(step.reads))
        if missing:
            self.fault(index, f"the gradient norm leaves out {missing[0]}", "add it to its reads")
        axes = [c.axes for c in step.collectives]
        wanted = ["dp_shard"] if self.facts.zero > 0 else []
        if axes != wanted:
            self.fault(
                index, f"the gradient norm is summed over {axes or 'nothing'}", f"sum it over {wanted or 'nothing'}"
            )

    def _update(self, index: int, step: Instruction) -> None:
        unit = step.segment or ""
        self.updated[unit] += 1
        if self.updated[unit] > 1:
            self.fault(index, f"{unit} is updated twice", "drop one Update")
            return
        if self.clipped is None:
            self.fault(index, f"{unit} is updated before the gradient norm is known", "move `C` before the updates")
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
                return

    def _expected(self, unit: str) -> set[Contribution]:
        microbatches = range(self.facts.layout.num_microbatches)
        return {(s.name, m) for s in self.facts.segments if unit in s.units for m in microbatches}

    def finish(self) -> None:
        last = len(self.program.instructions) - 1
        for segment in self.facts.segments:
            ops = ["B"] if segment.kind == "head" else ["F", "B"]
            for m in range(self.facts.layout.num_microbatches):
                for op in ops:
                    if not self.passed[op, segment.name, m]:
                        self.fault(last, f"`{op} {segment.name} m{m}` never runs", "add it")
        for unit in self.facts.flats:
            if not self.updated[unit]:
                self.fault(last, f"{unit} is never updated", f"add `U {unit}`")
            wanted = 1 if self.facts.zero in (1, 2) else 0
            if self.published[unit] != wanted:
                self.fault(last, f"{unit} is published {self.published[unit]} times", f"publish it {wanted} times")


def check_gradients(rank: int, program: Program, facts: Lowering) -> list[Fault]:
    """The gradients' laws of one training step; an evaluation has none."""
    if program.kind != "train":
        return []
    flow = _Flow(rank, program, facts)
    for index, step in enumerate(program.instructions):
        flow.step(index, step)
    flow.finish()
    return flow.faults
