"""The gradients' walk: every microbatch passes every segment once, and every contribution to a gradient is summed over every
data axis exactly once, then used once.

A contribution is (segment, microbatch, operation): a backward in two halves makes two. Each is followed from the backward that
makes it through the buffers it moves in, with a count of the reductions over each axis that it has been through.
"""

from collections import Counter
from dataclasses import dataclass, field

from fourfold.model.spec import Segment
from fourfold.program.fault import Fault
from fourfold.program.instruction import COMPUTE_OPS, RECEIVES, SENDS, Instruction, Op, Program
from fourfold.program.totals import data_axes, loss_axes
from fourfold.program.view import RankView

Contribution = tuple[str, int, str]
Held = dict[Contribution, tuple[str, ...]]
"""The axes that a contribution has been summed over."""
_SILENT = SENDS | RECEIVES | {Op.LOAD, Op.GATHER, Op.FREE}
"""Operations that no gradient takes part in, but for what they free."""


@dataclass
class _Flow:
    rank: int
    program: Program
    view: RankView
    full: dict[str, Held] = field(default_factory=dict)
    shard: dict[str, Held] = field(default_factory=dict)
    passed: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    counts: int = 0
    counted: bool = False
    loss_sums: int = 0
    balances: int = 0
    tied: int = 0
    reported: set[str] = field(default_factory=set)
    clipped: bool = False
    updated: Counter[str] = field(default_factory=Counter)
    gathered_updates: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, index: int, message: str, fix: str) -> None:
        self.faults.append(Fault.at(self.rank, self.program, index, message, fix))

    @property
    def _loss_op(self) -> str:
        """The head's operation that gives the loss."""
        return (Op.BACKWARD if self.program.kind == "train" else Op.FORWARD).value

    @property
    def _has_head(self) -> bool:
        return any(segment.kind == "head" for segment in self.view.segments)

    def step(self, index: int, step: Instruction) -> None:
        if step.op in COMPUTE_OPS:
            self._compute(index, step)
        elif step.op in _SILENT:
            pass
        elif step.op is Op.WAIT:
            self.counted |= step.handle == Op.COUNT.value
        elif step.op is Op.REDUCE:
            self._reduce(index, step)
        elif step.op is Op.CLIP_NORM:
            if self.clipped:
                self.fault(index, "the gradient norm is taken twice", "drop one")
            self.clipped = True
            for unit in self.view.flats:
                self._check_complete(index, unit)
        elif step.op is Op.UPDATE:
            self._update(index, step)
        elif step.op is Op.PARAMETER_ALL_GATHER:
            unit = step.segment or ""
            self.gathered_updates[unit] += 1
            if not self.updated[unit]:
                self.fault(index, f"{unit} is gathered before its update", "move it after the Update")
        elif step.op is Op.REDUCE_TIED:
            self._reduce_tied(index, step)
        elif step.op is Op.BALANCE:
            self._balance(index)
        elif step.op is Op.COUNT:
            self.counts += 1
        elif step.op is Op.SUM_LOSS:
            self._sum_loss(index)
        for freed in step.frees:
            if freed.startswith("grad"):
                kind, _, unit = freed.partition("/")
                if kind in ("grad", "grad_shard"):
                    (self.full if kind == "grad" else self.shard).pop(unit, None)

    def _sum_loss(self, index: int) -> None:
        self.loss_sums += 1
        for m in range(self.view.spec.layout.num_microbatches):
            if self._has_head and not self.passed[self._loss_op, "head", m]:
                self.fault(
                    index, f"the loss is summed without that of m{m}", f"move it after `{self._loss_op} head m{m}`"
                )
            for segment in self.view.moe_segments if self.program.kind == "train" else ():
                if not self._routed(segment.name, m):
                    fix = f"move it after the backward of {segment.name} m{m}"
                    self.fault(index, f"the loss is summed without the auxiliary losses of {segment.name} m{m}", fix)

    def _routed(self, segment: str, m: int) -> bool:
        """Whether the segment has recorded the microbatch's loads and auxiliary losses, as its backward does."""
        return bool(self.passed[Op.BACKWARD.value, segment, m] or self.passed[Op.BACKWARD_INPUT.value, segment, m])

    def _balance(self, index: int) -> None:
        self.balances += 1
        for segment in self.view.moe_segments:
            for m in range(self.view.spec.layout.num_microbatches):
                if not self._routed(segment.name, m):
                    fix = f"move it after the backward of {segment.name} m{m}"
                    self.fault(index, f"the experts' loads are summed without those of {segment.name} m{m}", fix)

    def _compute(self, index: int, step: Instruction) -> None:
        segment, m = step.segment or "", step.microbatch if step.microbatch is not None else -1
        op = step.op.value
        times = self.passed[op, segment, m] = self.passed.get((op, segment, m), 0) + 1
        if times > 1:
            self.fault(index, f"{step.short} runs twice", "drop one")
        if self.updated:
            self.fault(index, "computes after an update has changed the parameters", "move it before the updates")
        if step.op is Op.BACKWARD and segment == "head" and data_axes(self.view.spec.layout) and not self.counted:
            self.fault(index, "the loss is divided before the valid targets are counted", "put `wait N` before it")
        if step.op is Op.BACKWARD_WEIGHT and not self.passed[Op.BACKWARD_INPUT.value, segment, m]:
            self.fault(index, f"{step.short} runs before its input gradient", f"move it after `I {segment} m{m}`")
        for written in step.writes:
            if written.startswith("grad/"):
                self.full.setdefault(written.removeprefix("grad/"), {})[segment, m, op] = ()

    def _reduce(self, index: int, step: Instruction) -> None:
        unit = step.segment or ""
        held = self.full.get(unit)
        if not held:
            self.fault(
                index, f"reduces {unit}, which has no gradient to reduce", "move it after the last Backward of the unit"
            )
            return
        into_shard = any(name.startswith("grad_shard/") for name in step.writes)
        target = held
        for collective in step.collectives:
            if into_shard and collective.kind == "reduce_scatter":
                target = self.shard.setdefault(unit, {})
                for key, axes in held.items():
                    if key in target:
                        self.fault(
                            index, f"{key[0]} m{key[1]} is added to the shard of {unit} twice", "drop one Reduce"
                        )
                    target[key] = (*axes, *collective.axes.split("+"))
            else:
                more = tuple(collective.axes.split("+"))
                for key, axes in target.items():
                    target[key] = axes + more

    def _reduce_tied(self, index: int, step: Instruction) -> None:
        """Both holders add what they have: it must be whole on each, summed over all else, and is marked as summed over `tied`."""
        unit = step.segment or ""
        held, before = self._final(unit), self._wanted(unit) - Counter(["tied"])
        full = {key for key, axes in held.items() if Counter(axes) == before}
        for key, axes in held.items():
            held[key] = (*axes, "tied")
        self.tied += 1
        lacking = self._expected(unit) - full
        if lacking:
            segment, m, op = min(lacking)
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
        held = self._final(unit)
        for segment, m, op in sorted(self._expected(unit) - held.keys()):
            self.fault(index, f"the gradient of {unit} lacks {segment} m{m}", f"reduce it after `{op} {segment} m{m}`")
        wanted = self._wanted(unit)
        seen = {axes: Counter(axes) for axes in set(held.values())}
        for (segment, m, _), summed in held.items():
            axes = seen[summed]
            if axes != wanted:
                wrong = sorted((wanted - axes) or (axes - wanted))[0]
                how = "is not summed" if (wanted - axes)[wrong] else "is summed more than once"
                self.fault(
                    index,
                    f"the gradient of {unit} from {segment} m{m} {how} over {wrong}",
                    f"reduce {unit} exactly once over {' and '.join(wanted) or 'nothing'} after its last Backward",
                )
                break
        if len(self.faults) > before:
            self.reported.add(unit)

    def _expected(self, unit: str) -> set[Contribution]:
        users = [s.name for s in self.view.segments if unit in s.units]
        runs = [(name, m) for name in users for m in range(self.view.spec.layout.num_microbatches)]
        return {(name, m, op) for name, m in runs for op in self._backward_ops(name, m)}

    def _backward_ops(self, segment: str, m: int) -> str:
        """`B`, or `IW` where either half has run."""
        return "IW" if self.passed["I", segment, m] or self.passed["W", segment, m] else "B"

    def finish(self) -> None:
        last = len(self.program.instructions) - 1
        for segment in self.view.segments:
            for m in range(self.view.spec.layout.num_microbatches):
                self._check_passed(last, segment, m)
        counts, sums = int(bool(data_axes(self.view.spec.layout))), int(bool(loss_axes(self.view.spec)))
        balances, tied = 0, 0
        if self.program.kind == "train":
            balances, tied = int(self.view.spec.model.num_experts > 0), int(self.view.tied_unit is not None)
        for what, short, times, wanted in (
            ("valid targets are summed", "N", self.counts, counts),
            ("loss is summed", "Y", self.loss_sums, sums),
            ("experts' loads are summed", "E", self.balances, balances),
            ("tied gradient is summed", f"T {self.view.tied_unit}", self.tied, tied),
        ):
            if times != wanted:
                self.fault(last, f"the {what} {times} times over the ranks", f"have `{short}` {wanted} times")
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

    def _check_passed(self, last: int, segment: Segment, m: int) -> None:
        """Every microbatch passes the segment forward once, and backward once, in full or in halves."""
        passed = {op for op in "FBIW" if self.passed[op, segment.name, m]}
        if self.program.kind != "train":
            wanted = {"F"}
        elif segment.kind == "head":
            wanted = {"B"}
        else:
            wanted = {"F", "I", "W"} if passed & {"I", "W"} else {"F", "B"}
        for op in sorted(wanted - passed):
            self.fault(last, f"`{op} {segment.name} m{m}` never runs", "add it")
        if passed - wanted and "B" in passed:
            self.fault(last, f"`B {segment.name} m{m}` runs beside its halves", "drop one of them")


def check_gradients(rank: int, program: Program, view: RankView) -> list[Fault]:
    """The gradients' laws of one training step; of an evaluation, that every loss is in the sum."""
    flow = _Flow(rank, program, view)
    for index, step in enumerate(program.instructions):
        flow.step(index, step)
    flow.finish()
    return flow.faults
