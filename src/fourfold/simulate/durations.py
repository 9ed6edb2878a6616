"""How long each instruction of one pipeline rank takes, by the work that it declares."""

from collections.abc import Sequence

from fourfold.cost.phase import PhaseCost, phase_cost, whole
from fourfold.cost.prices import Prices
from fourfold.layout import FlatLayout
from fourfold.model.footprint import Footprint
from fourfold.model.work import Phase
from fourfold.program.footprints import phase_of
from fourfold.program.instruction import Instruction, Op
from fourfold.program.sizes import buffer_bytes
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView


class PassCosts:
    """A cache: the cost of passes over segments at one run's prices; the ranks of a pipeline share it."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._known: dict[Phase, PhaseCost] = {}

    def of(self, footprint: Footprint, op: Op, is_head: bool) -> PhaseCost:
        """The cost of one computing instruction on a segment with that footprint."""
        phase, prices = phase_of(footprint, op), self._prices
        if is_head and prices.stack.whole_head:
            phase = whole(phase)
        cost = self._known.get(phase)
        if cost is None:
            cost = self._known[phase] = phase_cost(phase, prices.plain if is_head else prices)
        return cost


class Durations:
    """Seconds of one pipeline rank's instructions, found once for each kind of segment and unit."""

    def __init__(self, view: RankView, prices: Prices, costs: PassCosts) -> None:
        self.prices = prices
        self._view = view
        self._costs = costs
        self._compute: dict[tuple[Op, str | None], float] = {}

    def compute(self, step: Instruction) -> float:
        """A pass over a segment, its own collectives included."""
        key = (step.op, step.segment)
        found = self._compute.get(key)
        if found is None:
            found = self._compute[key] = self.phase(step).seconds
        return found

    def phase(self, step: Instruction) -> PhaseCost:
        """The same, in its parts."""
        segment = self._view.stages.segments[step.segment or ""]
        return self._costs.of(self._view.footprint(segment), step.op, segment.kind == "head")

    def collectives(self, step: Instruction) -> float:
        """Those of one instruction, one after the other."""
        seconds = sum(self.prices.collective(c.kind, c.axes, c.bytes) for c in step.collectives)
        return seconds + (self.prices.stack.host_collective_seconds if step.collectives else 0.0)

    def local(self, step: Instruction) -> float:
        """What an instruction that is neither computes: the optimizer's pass over its shard, the norm's over all gradients."""
        view = self._view
        if step.op is Op.UPDATE:
            return self.prices.memory(update_bytes(view.spec, view.flats[step.segment or ""]))
        if step.op is Op.CLIP_NORM:
            return self.prices.memory(sum(buffer_bytes(view, name) for name in step.reads))
        return 0.0


def rank_durations(views: Sequence[RankView], prices: Prices) -> tuple[Durations, ...]:
    """Of every pipeline rank; a pass over a segment of the same kind is priced once for all of them."""
    costs = PassCosts(prices)
    return tuple(Durations(view, prices, costs) for view in views)


def update_bytes(spec: StepSpec, flat: FlatLayout) -> int:
    """Bytes that the update of a unit's shard reads and writes."""
    return flat.shard_numel * spec.optimizer.update_bytes(spec.compute, spec.master, spec.gradients)
