"""How long instructions take, by the work that they declare and by nothing else."""

from fourfold.cost.phase import PhaseCost, phase_cost, unchunked
from fourfold.cost.prices import Prices
from fourfold.model.work import Work
from fourfold.program.instruction import Instruction, Op
from fourfold.program.launches import work_launches
from fourfold.program.pattern import Pattern


class Durations:
    """Seconds at one run's prices. A cache: the ranks of a pipeline, whose instructions do the same work, share it."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self._known: dict[tuple[Work, bool], PhaseCost] = {}
        self._costs: dict[tuple[int, bool], tuple[Work, PhaseCost]] = {}
        self._launches: dict[int, tuple[Work, int]] = {}

    def work(self, work: Work, is_head: bool = False) -> PhaseCost:
        """The cost of a pass over a segment, in its parts. The head's matmuls stay in the format of the rest of the model."""
        key = (work, is_head)
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = self._cost(work, is_head)
        return cost

    def _cost(self, work: Work, is_head: bool) -> PhaseCost:
        if not is_head:
            return phase_cost(work, self.prices)
        return phase_cost(unchunked(work) if self.prices.software.unchunked_head else work, self.prices.plain)

    def phase(self, step: Instruction | Pattern) -> PhaseCost:
        """A computing instruction, its own collectives included. Instructions share their work: found by identity, and kept, so
        that its identity stays its own."""
        key = (id(step.work), step.segment == "head")
        known = self._costs.get(key)
        if known is None:
            known = self._costs[key] = (step.work, self.work(step.work, step.segment == "head"))
        return known[1]

    def launches(self, work: Work) -> int:
        """Number of kernels in an instruction's work, found by identity as `phase` does."""
        known = self._launches.get(id(work))
        if known is None:
            known = self._launches[id(work)] = (work, work_launches(work))
        return known[1]

    def compute(self, step: Instruction | Pattern) -> float:
        """Seconds of an instruction's kernels, in all."""
        return self.phase(step).seconds

    def collectives(self, step: Instruction | Pattern) -> float:
        """Seconds of one instruction's collectives, one after the other, and the host's start of them where no `HostStream` has
        it; its copies between device and host."""
        found, software = step.work.collectives, self.prices.software
        if step.work.host_bytes:
            return self.prices.host_copy(step.work.host_bytes)
        seconds = sum(self.prices.collective(c.kind, c.axes, c.bytes) for c in found)
        if step.op.is_start and step.work.elementwise_bytes:  # kernels between a reduction's collectives
            seconds += self.prices.memory(step.work.elementwise_bytes)
        return seconds + (software.host_collective_seconds if found and not software.host_instruction_seconds else 0.0)

    def local(self, step: Instruction | Pattern) -> float:
        """Seconds of an instruction outside segments: the optimizer's kernel over its shard, the norm's over all gradients."""
        if step.work.flops:  # the optimizer's matmuls
            return self.work(step.work).seconds
        if step.op is Op.UPDATE:
            return self.prices.update(step.work.elementwise_bytes)
        return self.prices.memory(step.work.elementwise_bytes) if step.work.elementwise_bytes else 0.0
