"""Sharper prices of one layout than its bound: the timeline of its schedule, the simulation of its program."""

from dataclasses import dataclass, replace

from fourfold.config import UserError
from fourfold.layout import resolve_layout
from fourfold.plan.request import Candidate, Request
from fourfold.program.facts import Lowering
from fourfold.simulate.stage_times import estimate_makespan
from fourfold.simulate.step import StepPrediction, predict_memory, predict_step


@dataclass(frozen=True)
class Priced:
    """A layout that was simulated. `device_bytes`: of every pipeline rank."""

    candidate: Candidate
    seconds: float
    device_bytes: tuple[int, ...]
    bound_seconds: float = 0.0

    @property
    def memory_bytes(self) -> int:
        """Of the device that holds the most."""
        return max(self.device_bytes)


def price_candidate(request: Request, candidate: Candidate, bound_seconds: float = 0.0) -> Priced | str:
    """Simulates a layout; a message where it cannot be."""
    try:
        step = predict_candidate(request, candidate)
    except UserError as error:
        return str(error)
    return Priced(candidate, step.seconds, step.device_bytes, bound_seconds)


def candidate_fits(request: Request, candidate: Candidate) -> bool:
    """Whether the layout can be and fits, without its time."""
    try:
        facts = candidate_facts(request, candidate)
        return max(predict_memory(facts, request.prices(facts.layout))) <= request.memory_bytes
    except UserError:
        return False


def predict_candidate(request: Request, candidate: Candidate, alike: StepPrediction | None = None) -> StepPrediction:
    """The step that the runtime would execute. `alike`: of a layout with the same programs. Raises `UserError` where the layout
    cannot be."""
    facts = candidate_facts(request, candidate)
    return predict_step(facts, request.prices(facts.layout), alike)


def candidate_facts(request: Request, candidate: Candidate) -> Lowering:
    """What lowering reads."""
    config = request.run(candidate.section())
    return Lowering.of(config, request.model, resolve_layout(config, request.model), request.transport)


def family(candidate: Candidate) -> Candidate:
    """The layout whose data parallelism is divided in no way but ZeRO's over all of it."""
    return replace(candidate, dp_replicate=1, dp_shard=candidate.dp)


class Timelines:
    """The timelines of layouts' schedules, which do not depend on how data parallelism is divided."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._known: dict[Candidate, float] = {}
        self._ratios: dict[tuple[str, int, int, int, bool], float] = {}

    @property
    def drawn(self) -> int:
        return len(self._known)

    def own(self, candidate: Candidate, bound: float) -> float:
        """Seconds, never less than the bound. Raises `UserError` where the layout cannot be."""
        key = replace(family(candidate), zero=0)
        if key not in self._known:
            facts = candidate_facts(self._request, candidate)
            self._known[key] = estimate_makespan(facts, self._request.prices(facts.layout))
        return max(bound, self._known[key])

    def like(self, candidate: Candidate, bound: float) -> float:
        """The bound times what another shape's timeline was over its own bound, in the same pipeline."""
        each = candidate.dp * candidate.microbatch_sequences
        key = (candidate.schedule, candidate.pp, candidate.virtual_stages, each, candidate.recompute == "full")
        if key not in self._ratios:
            self._ratios[key] = self.own(candidate, bound) / bound if candidate.pp > 1 else 1.0
        return bound * self._ratios[key]
