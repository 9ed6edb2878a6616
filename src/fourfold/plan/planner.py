"""A plan: the search, the heuristic baseline, why asked layouts lost and what would help, within one budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fourfold.config import UserError
from fourfold.model.counts import step_flops_per_token
from fourfold.plan.advice import Advice, advise
from fourfold.plan.bounding import Progress
from fourfold.plan.budget import BUDGET, SHARES, SearchBudget
from fourfold.plan.conflicts import contradiction, has_layouts, obstacles
from fourfold.plan.constraints import NO_CONSTRAINTS
from fourfold.plan.goals import enough_devices
from fourfold.plan.heuristic_baseline import heuristic_baseline
from fourfold.plan.moves.activations import seconds_per_gigabyte, states_per_gigabyte
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import Found, search
from fourfold.simulate.step import mean_seconds
from fourfold.simulate.summary import StepSummary


@dataclass(frozen=True)
class Explanation:
    """`asked`: the fields that a person named. `priced`: the best layout with them, None if there is none, and then `refused` says
    why. `differences`: seconds that it spends more than the best layout, by what on, mean over pipeline ranks, largest first."""

    asked: Mapping[str, int | str]
    priced: Priced | None
    refused: str | None
    differences: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Plan:
    """`heuristic_baseline`: None where none of it fits; `baseline_is_outside`: it does not keep to the constraints. `enough`:
    devices on which something would fit, where nothing does here. `best_step`: the best layout's step. `obstacles`: constraints
    without one of which something may fit, where nothing does. `advice`: changes of the best layout that help, all simulated."""

    found: Found
    heuristic_baseline: Priced | None
    explanations: tuple[Explanation, ...] = ()
    enough: int | None = None
    best_step: StepSummary | None = None
    baseline_is_outside: bool = False
    obstacles: tuple[str, ...] = ()
    advice: Advice | None = None

    @property
    def spare_prices(self) -> dict[str, float]:
        """Seconds of the best layout's step that a gigabyte of activations costs that is not kept, by the way to spare it."""
        if self.best_step is None:
            return {}
        return seconds_per_gigabyte(self.best_step.step.simulation, self.best_step.num_microbatches)

    @property
    def states_price(self) -> float | None:
        """Seconds of its step that a gigabyte of optimizer states in the host's memory costs; None where they are there."""
        return states_per_gigabyte(self.best_step.step.simulation) if self.best_step is not None else None

    @property
    def request(self) -> Request:
        """The request that was planned."""
        return self.found.request

    @property
    def best(self) -> Priced | None:
        """The best layout; None where none fits."""
        return self.found.best[0] if self.found.best else None

    @property
    def front(self) -> list[Priced]:
        """Throughput against memory."""
        found = self.found
        return pareto(list(filter(None, [*found.best, found.low_memory, found.surely_fits])))

    def tokens_per_second(self, priced: Priced) -> float:
        """Per device."""
        return self.request.tokens / priced.seconds / self.request.devices

    def mfu(self, priced: Priced) -> float:
        """FLOPs a token (`model.counts.step_flops_per_token`) x tokens/s of a device / its peak in the compute format."""
        request = self.request
        flops = step_flops_per_token(request.model, request.sequence_length)
        peak = request.cluster.device.peak(request.template.matmul_format)
        return flops * self.tokens_per_second(priced) / peak


def make_plan(
    request: Request,
    explained: Sequence[Mapping[str, int | str]] = (),
    budget: float = BUDGET,
    keep: int = 5,
    progress: Progress | None = None,
) -> Plan:
    """The `keep` fastest layouts that fit, beside the baseline and the best layouts with the fields in `explained`.

    The baseline takes part in the search. Explained layouts do not: what is asked changes nothing of what is found. Raises
    `UserError` where no layout keeps to all of them.
    """
    if request.constraints.limits and not has_layouts(request) and (why := contradiction(request)):
        raise UserError(why)
    work = SearchBudget(budget)
    pricer = Pricer(request, work)
    baseline, outside = heuristic_baseline(request, work.part(SHARES.baseline), pricer), False
    if baseline is None and request.constraints.limits:
        free = replace(request, constraints=NO_CONSTRAINTS)
        baseline, outside = heuristic_baseline(free, work.part(SHARES.baseline), pricer), True
    known = [baseline] if baseline is not None else []
    found = search(request, work.part(), keep=keep, progress=progress, known=known, pricer=pricer)
    share = SHARES.explained * budget
    explanations = tuple(explain(request, fields, found, share, known, pricer) for fields in explained)
    if not found.best:
        enough = enough_devices(request, SHARES.enough * budget)
        return Plan(found, None, explanations, enough.devices if enough else None, obstacles=tuple(obstacles(request)))
    best, likely = found.best[0], request.likely_bytes
    best_step = pricer.summary(best.candidate)
    limit = likely if best.memory_bytes <= likely else request.memory_bytes
    neighbourhood = pricer.within(replace(request, memory_bytes=limit), SearchBudget(SHARES.advice * budget))
    advice = advise(neighbourhood, best.candidate, best_step)
    return Plan(found, baseline, explanations, best_step=best_step, baseline_is_outside=outside, advice=advice)


def explain(
    request: Request,
    fixed: Mapping[str, int | str],
    found: Found,
    budget: SearchBudget | float,
    known: Sequence[Priced] = (),
    pricer: Pricer | None = None,
) -> Explanation:
    """Searches among the layouts with these fields alone, and sets the best of them beside the best of all. The fields replace what
    was stated of the same keys; all other constraints hold."""
    pricer = pricer or Pricer(request)
    own = search(request, budget, keep=1, fixed=fixed, known=[*found.best, *known], pricer=pricer)
    if not own.best:
        if own.smallest is not None:
            held = own.smallest[1] / 1e9
            limit = request.memory_bytes / 1e9
            return Explanation(
                fixed, None, f"nothing with it fits: the least that a device would hold is {held:.0f} GB of {limit:.0f}"
            )
        return Explanation(fixed, None, _none(request, fixed))
    best = found.best[0] if found.best else own.best[0]
    mine, theirs = (mean_seconds(pricer.summary(each.candidate).spent) for each in (own.best[0], best))
    rows = [(kind, mine.get(kind, 0.0) - theirs.get(kind, 0.0)) for kind in {*mine, *theirs}]
    rows.sort(key=lambda row: (-abs(row[1]), row[0]))
    return Explanation(fixed, own.best[0], None, tuple(rows))


def _none(request: Request, fixed: Mapping[str, int | str]) -> str:
    why = contradiction(request.fixing(fixed))
    rule = "" if request.constraints.limits else ": degrees must divide"
    return f"no layout of this model, cluster and batch has it{rule}" + (f"; {why}" if why else "")


def pareto(priced: Sequence[Priced]) -> list[Priced]:
    """Layouts that no other beats in both time and memory, fastest first."""
    front: list[Priced] = []
    for each in sorted(priced, key=lambda p: (p.seconds, p.memory_bytes)):
        if not front or each.memory_bytes < front[-1].memory_bytes:
            front.append(each)
    return front
