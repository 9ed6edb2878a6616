"""`fourfold.plan`: the fastest layouts of a model on a cluster, found by simulating the programs that would run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from fourfold.api.inputs import answers, check_word, config_of
from fourfold.api.numbers import parse_number
from fourfold.api.options import Dtype, Objective, PlanOptions, SoftwareOptions, Trainer, names
from fourfold.api.plan_request import Asked, model_notes, planned_run, read_request
from fourfold.api.simulation import simulate
from fourfold.config import RunConfig, UserError
from fourfold.cost.fitted import framework_of
from fourfold.cost.software import OWN_SOFTWARE
from fourfold.plan.constraints import parse_fixed
from fourfold.plan.goals import Aim, TrainingRun, cheapest, fewest, largest, longest
from fourfold.plan.planner import Plan, make_plan
from fourfold.plan.pricing import Priced, candidate_spec
from fourfold.plan.request import SAFE, Request
from fourfold.plan.trainers import TRAINERS
from fourfold.report.format_campaign import campaign_lines
from fourfold.report.format_outlook import advice_record
from fourfold.report.format_plan import plan_lines
from fourfold.report.plan_screen import screen_lines
from fourfold.report.verdict import verdict_lines
from fourfold.results.plan import plan_record
from fourfold.results.prediction import campaign_record
from fourfold.results.record import document
from fourfold.simulate.campaign import Campaign
from fourfold.simulate.paused_garbage_collection import without_collection

COMPARED = ("fourfold", "megatron", "torchtitan")
"""Software that the best layout is priced under beside its own."""


@dataclass(frozen=True, repr=False)
class PlanResult:
    """A plan and what was asked for. `found`: the search's result. `searched`: lines on the way to the objective.
    `training`: length and cost of a run with the best layout. `trainer`: the one whose layouts alone were searched. `refused`: why
    a run of stages, or with a ramp, cannot have that layout."""

    asked: Asked
    found: Plan
    objective: Objective
    searched: tuple[str, ...]
    tokens: float | None
    training: Campaign | None
    trainer: Trainer | None
    refused: str = ""

    @property
    def request(self) -> Request:
        """The request that was planned at last: objectives choose devices, sequences or the model."""
        return self.found.request

    @property
    def layouts(self) -> tuple[Priced, ...]:
        """The layouts that are likely to fit, the fastest first; of those that are as fast to a per cent for each feature beyond
        the plain ones, the plainer. Each has `candidate` (its degrees), `seconds` of a step and `memory_bytes` of the fullest
        device."""
        return self.found.found.best

    @property
    def best(self) -> Priced | None:
        """The fastest layout; None where nothing was found to fit."""
        return self.found.best

    @property
    def notes(self) -> list[str]:
        """Notes, one where the model is planned as a near one, or beyond what it was made for."""
        return [*model_notes(self.asked, self.request), *([self.refused] if self.refused else [])]

    def run(self, layout: Priced | None = None) -> RunConfig:
        """The run of a layout, the best by default: `simulate`, `verify` and `train` take it. Raises `UserError` where nothing
        fits."""
        chosen = layout if layout is not None else self.best
        if chosen is None:
            raise UserError("the plan found no layout that fits, so it has no run; what works: a larger cluster")
        return planned_run(self.asked, self.request, chosen.candidate, self.tokens)

    def _step_run(self) -> RunConfig:
        """The run of the best layout as if all its steps were like the planned one."""
        run, stage = self.run(), self.asked.stage
        run = run if stage is None else config_of(run, [f"stage={stage.number + 1}"])
        return run.model_copy(update={"batch": run.batch.model_copy(update={"ramp": []})})

    def elsewhere(self) -> list[tuple[str, float | None]]:
        """Other software, and the seconds of a step of the best layout under it; None where that cannot run the layout. Empty
        where the step depends on more than software: matmuls in 8 bits, a model that is planned as the nearest, a block of one's
        own. Raises `UserError` as `simulate` does."""
        request, best = self.request, self.best
        is_own = self.asked.near is None and request.model.block is None
        if best is None or not is_own or request.template.matmul_format != request.template.dtype:
            return []
        found: list[tuple[str, float | None]] = []
        for name in COMPARED:
            if name == framework_of(request.software.name):
                continue
            runs = (
                TRAINERS[name].permits(request, best.candidate)
                and not best.candidate.activations
                and not best.candidate.offload_optimizer
            )
            step = (
                simulate(self._step_run(), cluster=request.cluster, software=name)
                if runs or name == OWN_SOFTWARE
                else None
            )
            found.append((name, step.step_seconds if step is not None else None))
        return found

    def lines(self, verbose: bool, next_step: str | None = None) -> list[list[str]]:
        """Screens of text: the first at a glance, and `next_step` where layouts were found; with `verbose` all figures. Raises
        `UserError` as `elsewhere` does."""
        head = [*self.notes, *self.searched]
        head += [""] if head else []
        if self.best is not None and not verbose:
            more = [["", next_step]] if next_step is not None else []
            return [[*head, *screen_lines(self.found, self.training, self.elsewhere())], *more]
        screens = [[*head, *plan_lines(self.found)]]
        if self.training is not None and self.best is not None:
            state_bytes = candidate_spec(self.request, self.best.candidate).checkpoint_bytes
            screens.append(["", *campaign_lines(self.training, state_bytes)])
        return screens

    def to_json(self) -> dict[str, Any]:
        """The document of `fourfold plan --json`; units are in the keys."""
        step = self.found.best_step
        found = plan_record(
            self.found,
            verdict_lines(step) if step is not None else [],
            advice_record(self.found.advice, step) if step is not None else None,
            trainer=self.trainer,
            run=campaign_record(self.training) if self.training is not None else None,
            objective={"name": self.objective, "lines": list(self.searched)},
            notes=self.notes,
        )
        return dict(document(found))

    def __repr__(self) -> str:
        where = f"{self.request.devices} x {self.request.cluster.device.name}"
        if self.best is None:
            return f"PlanResult({where}: nothing fits)"
        return f"PlanResult({where}: {self.best.candidate.words()}, {self.best.seconds:.4g} s a step)"

    def _repr_html_(self) -> str:
        from fourfold.api.notebook import plan_html

        return plan_html(self)


@without_collection()
@answers(PlanOptions)
def plan(asked: PlanOptions) -> PlanResult:
    """Find the fastest layouts of a model on a cluster. Needs neither torch nor the cluster.

    Give a run, or `model`, `cluster`, `sequence_length` and a batch. Arguments are the options of `fourfold plan`, with the same
    defaults: `model` is a preset or a folder with a config.json, `sequence_length` counts tokens, `batch_tokens` or
    `batch_sequences` state the batch of a step, `explain` names fields of layouts (`"tp=8,pp=4"` or `{"tp": 8}`) to set beside
    the best, `keep` says how many layouts to return, `budget` is work (1 is about a second of one core), `for_` names the trainer
    that must be able to run the layouts, `trust` imports the code that the run names. `progress` is called with a text and the
    share that is done.

    Units: `tokens` of the whole run, `price` in dollars a device hour, `failure_hours` between two failures of one device,
    `deadline_days` for the objective `devices`, `context_bytes` of a process, `fragmentation` as a share of the allocated memory,
    `memory_share` of a device's memory, from 0 to 1.

    Raises `UserError` with the command's message. Where nothing fits, `best` is None.
    """
    _check(asked)
    objective, budget, progress = asked.objective, asked.budget, asked.progress
    fixed = [parse_fixed(_text(each)) for each in asked.explain]
    read = read_request(asked)
    if read.stage is not None and (objective not in ("fastest", "safest") or asked.tokens is not None):
        option = f"--objective {objective}" if asked.tokens is None else f"--tokens {asked.tokens}"
        raise UserError(
            f"{option}: the run has stages, which say how long it is; what works: stage=1 behind the run file"
        )
    length = _training_run(asked)
    request = read.request if objective != "safest" else replace(read.request, most_risk=SAFE)
    aim = _aimed(request, length, asked)
    plans, settled = dict[int, Plan](), False
    while not settled:
        request = aim.request
        if request.devices not in plans:
            plans[request.devices] = make_plan(request, fixed, budget, asked.keep, progress)
        found = plans[request.devices]
        training = length.campaign(request, found.best) if length is not None and found.best is not None else None
        settled = aim.settled_by(training)
    refused = ""
    if found.best is not None and (read.stage is not None or read.run.batch.ramp):
        run = planned_run(read, request, found.best.candidate, None)
        training, refused = _training_of_course(run, asked, training)
    number = length.tokens if length is not None else None
    return PlanResult(read, found, objective, tuple(aim.lines), number, training, asked.for_, refused)


_PRICED = (*names(SoftwareOptions), "price", "failure_hours", "tokens")


def _training_of_course(run: RunConfig, asked: PlanOptions, alike: Campaign | None) -> tuple[Campaign | None, str]:
    """Length and cost of all stages, each under its own layout; or those that steps like the planned one would have, and why the
    run cannot have its layout."""
    batch = run.batch
    if alike is None and batch.steps is None and batch.tokens is None:
        return None, ""
    try:
        options = {key: getattr(asked, key) for key in _PRICED}
        return simulate(run, cluster=asked.cluster, trust=asked.trust, **options).campaign, ""
    except UserError as error:
        return alike, f"row 1 does not do for the full run: {error}; what works: a layout key behind the run file"


def _text(fields: str | Mapping[str, int | str]) -> str:
    return fields if isinstance(fields, str) else ",".join(f"{key}={value}" for key, value in fields.items())


def _check(asked: PlanOptions) -> None:
    """Raises `UserError` for an option that cannot be, or that says nothing here."""
    if not 0 < asked.memory_share <= 1:
        raise UserError(
            f"--memory-share {asked.memory_share}: allowed: more than 0, at most 1; a value that works: 0.94"
        )
    if asked.keep < 1 or asked.keep > 1000:
        raise UserError(f"--keep {asked.keep}: allowed: 1 to 1000; a value that works: 5")
    if not 0 < asked.budget <= 86_400:
        raise UserError(f"--budget {asked.budget}: allowed: more than 0, at most 86400; a value that works: 60")
    if asked.deadline_days is not None and asked.objective != "devices":
        raise UserError(
            f"--deadline-days {asked.deadline_days}: says something only with --objective devices; allowed there alone"
        )
    check_word("--objective", asked.objective, get_args(Objective))
    check_word("--for", asked.for_, get_args(Trainer))
    check_word("--dtype", asked.dtype, get_args(Dtype))


def _aimed(request: Request, length: TrainingRun | None, asked: PlanOptions) -> Aim:
    """The request to plan for an objective, and what was found on the way there."""
    objective, search = asked.objective, (asked.budget, asked.progress)
    if objective == "context":
        return longest(request, *search)
    if objective == "model":
        return largest(request, *search)
    if length is None or objective in ("fastest", "safest"):
        return Aim(request)
    if objective == "devices":
        return fewest(request, length, _deadline(asked.deadline_days), *search)
    if length.dollars_per_device_hour is None and request.cluster.dollars_per_device_hour is None:
        raise UserError(
            f"--objective cheapest: the cluster {request.cluster.key} states no price; what works: --price 2.5"
        )
    return cheapest(request, length, *search)


def _training_run(asked: PlanOptions) -> TrainingRun | None:
    """The run whose length and cost are asked for. Raises `UserError` where its tokens are missing."""
    tokens, price, failure_hours = asked.tokens, asked.price, asked.failure_hours
    if tokens is None:
        if asked.objective in ("cheapest", "devices"):
            raise UserError(f"--objective {asked.objective} needs --tokens; a value that works: --tokens 15T")
        for option, value in (("--price", price), ("--failure-hours", failure_hours)):
            if value is not None:
                raise UserError(
                    f"{option} {value}: says something only with --tokens; a value that works: --tokens 15T"
                )
        return None
    return TrainingRun(
        parse_number(tokens, "--tokens", "15T", least=1),
        parse_number(price, "--price", "2.5", least=1e-6, most=1e6) if price is not None else None,
        parse_number(failure_hours, "--failure-hours", "50k", 1e-3, 1e12) if failure_hours is not None else None,
    )


def _deadline(days: float | None) -> float:
    if days is None or not 0 < days < 1e6:
        raise UserError(f"--deadline-days {days}: allowed: more than 0; a value that works: --deadline-days 60")
    return days * 86_400
