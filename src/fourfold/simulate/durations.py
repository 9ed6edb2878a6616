"""How long each instruction of one pipeline rank takes, by the work that it declares."""

from fourfold.cost.phase import PhaseCost, phase_cost, whole
from fourfold.cost.prices import Prices
from fourfold.model.work import Phase
from fourfold.program.facts import Lowering
from fourfold.program.instruction import Instruction, Op


class Durations:
    """Seconds of instructions, found once for each kind of segment and unit."""

    def __init__(self, facts: Lowering, prices: Prices, phases: dict[Phase, PhaseCost] | None = None) -> None:
        """`phases`: what passes were found to cost, shared with other ranks at the same prices."""
        self.facts = facts
        self.prices = prices
        self._compute: dict[tuple[Op, str | None], float] = {}
        self._phases = phases if phases is not None else {}

    def compute(self, step: Instruction) -> float:
        """A pass over a segment, its own collectives included."""
        key = (step.op, step.segment)
        found = self._compute.get(key)
        if found is None:
            found = self._compute[key] = self.phase(step).seconds
        return found

    def phase(self, step: Instruction) -> PhaseCost:
        """The same, in its parts."""
        footprint = self.facts.footprint(self.facts.by_name[step.segment or ""])
        phases = {
            Op.FORWARD: footprint.forward,
            Op.RECOMPUTE: footprint.forward,
            Op.BACKWARD: footprint.backward,
            Op.BACKWARD_INPUT: footprint.input_gradient,
            Op.BACKWARD_WEIGHT: footprint.weight_gradient,
        }
        phase = phases[step.op]
        if step.segment == "head" and self.prices.stack.whole_head:
            phase = whole(phase)
        cost = self._phases.get(phase)
        if cost is None:
            prices = self.prices.plain if step.segment == "head" else self.prices
            cost = self._phases[phase] = phase_cost(phase, prices)
        return cost

    def collectives(self, step: Instruction) -> float:
        """Those of one instruction, one after the other."""
        seconds = sum(self.prices.collective(c.kind, c.axes, c.bytes) for c in step.collectives)
        return seconds + (self.prices.stack.host_collective_seconds if step.collectives else 0.0)

    def local(self, step: Instruction) -> float:
        """What an instruction that is neither computes: the optimizer's pass over its shard, the norm's over all gradients."""
        facts = self.facts
        if step.op is Op.UPDATE:
            return self.prices.memory(update_bytes(facts, step.segment or ""))
        if step.op is Op.CLIP_NORM:
            return self.prices.memory(sum(facts.buffer_bytes(name) for name in step.reads))
        return 0.0


def rank_durations(facts: Lowering, prices: Prices) -> list[Durations]:
    """Of every pipeline rank; a pass over a segment of the same kind is priced once for all of them."""
    phases: dict[Phase, PhaseCost] = {}
    return [Durations(facts.at(rank), prices, phases) for rank in range(facts.layout.pp)]


def update_bytes(facts: Lowering, unit: str) -> int:
    """Bytes that the update of a unit's shard reads and writes."""
    numbers = facts.flats[unit].shard_numel if facts.zero_of(unit) else facts.flats[unit].padded_numel
    return numbers * facts.optimizer.update_bytes(facts.compute, facts.master, facts.gradients)
