"""Which microbatches have passed which segments of a rank, by which operation; and whether each has passed as it must."""

from collections.abc import Iterator

from fourfold.model.spec import Segment
from fourfold.program.contributions import bits
from fourfold.program.instruction import Op, Opcode
from fourfold.program.program import Program
from fourfold.program.schedule.compute import SCHEDULED_OPS
from fourfold.program.view import RankView


class SegmentPasses:
    """Sets of microbatches as bits of a number. `every`: all of the step's."""

    def __init__(self, program: Program, view: RankView) -> None:
        self._trains, self._view = program.kind == "train", view
        self._passed: dict[tuple[str, str], int] = {}
        self.every = (1 << view.spec.layout.num_microbatches) - 1
        self.loss_op = Op.BACKWARD if self._trains else Op.FORWARD
        """The head's operation that gives the loss."""

    def add(self, op: Opcode, segment: str, m: int) -> bool:
        """Notes a pass. False: there was one before."""
        seen = self.of(op, segment)
        self._passed[op.value, segment] = seen | 1 << m
        return not seen >> m & 1

    def of(self, op: Opcode, segment: str) -> int:
        """The microbatches that this operation has taken through the segment."""
        return self._passed.get((op.value, segment), 0)

    def halved(self, segment: str) -> int:
        """Microbatches whose backward is split."""
        return self.of(Op.BACKWARD_INPUT, segment) | self.of(Op.BACKWARD_WEIGHT, segment)

    def without_loss(self) -> Iterator[int]:
        """Microbatches whose loss the rank's head has not given yet."""
        if any(segment.kind == "head" for segment in self._view.segments):
            yield from bits(self.every & ~self.of(self.loss_op, "head"))

    def unrouted(self) -> Iterator[tuple[str, int]]:
        """(mixture of experts, microbatch) whose loads and auxiliary losses are not recorded yet, as its backward does."""
        for each in self._view.moe_segments:
            routed = self.of(Op.BACKWARD, each.name) | self.of(Op.BACKWARD_INPUT, each.name)
            yield from ((each.name, m) for m in bits(self.every & ~routed))

    def problems(self, segment: Segment) -> Iterator[tuple[str, str]]:
        """(problem, repair): every microbatch passes the segment forward once, and backward once, in full or in halves."""
        every, halved = self.every, self.halved(segment.name)
        ran = {op.value: self.of(op, segment.name) for op in SCHEDULED_OPS}
        if not self._trains:
            wanted, beside = {"F": every}, ran["B"]
        elif segment.kind == "head":
            wanted, beside = {"B": every}, ran["B"] & (ran["F"] | halved)
        else:
            wanted = {"F": every, "B": every & ~halved, "I": every & halved, "W": every & halved}
            beside = ran["B"] & halved
        lacking = sorted((m, op) for op, numbers in wanted.items() for m in bits(numbers & ~ran[op]))
        for m, op in lacking:
            yield f"`{op} {segment.name} m{m}` never runs", "add it"
        for m in bits(beside):
            yield f"`B {segment.name} m{m}` runs beside its halves", "drop one of them"
