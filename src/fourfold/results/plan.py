"""A plan, as `plan --json` prints it. Units are in the names. None: not known, or not stated."""

from typing import Any, ClassVar

from fourfold.plan.outlook import features
from fourfold.plan.planner import Plan
from fourfold.plan.pricing import Priced
from fourfold.results.fit import fit_of_priced
from fourfold.results.prediction import (
    AdviceDocument,
    CampaignDocument,
    FitDocument,
    LayoutDocument,
    StepDocument,
    interval_of,
    step_record,
)
from fourfold.results.record import ABSENT, record, shown


@record
class PricedLayout:
    """A layout that a search priced. `behind`: why it is not first though it is faster than the first;
    `score_seconds`: by which layouts are ordered."""

    layout: LayoutDocument
    words: str
    step_seconds: float
    bound_seconds: float | None
    tokens_per_second_per_device: float
    mfu: float
    memory_bytes: int
    memory_bytes_by_pp_rank: list[int]
    fit: FitDocument
    behind: str | None
    score_seconds: float


def num_within_interval(plan: Plan) -> int | None:
    """How many of the best layouts lie within the interval of the first one's time; None where no published run tells of it."""
    if plan.best_step is None or plan.best is None:
        return None
    found = interval_of("time", plan.best_step)
    return None if found is None else sum(each.seconds <= found[1] for each in plan.found.best)


def why_behind(faster: Priced, best: Priced) -> str:
    """Why a faster layout is not first: it is less likely to fit, or has features that gain less than a per cent each."""
    more = [each for each in features(faster.candidate) if each not in features(best.candidate)]
    if faster.out_of_memory > best.out_of_memory + 0.005 and faster.score < best.score:
        return f"runs out of memory in {100 * faster.out_of_memory:.0f} % of cases"
    return f"less than 1 % each for {', '.join(more)}" if more else "less than 1 % for what it has more"


def priced_record(plan: Plan, priced: Priced) -> PricedLayout:
    """A layout that the search of a plan priced."""
    return shown(
        PricedLayout,
        priced,
        layout=shown(LayoutDocument, plan.request.section(priced.candidate)),
        words=priced.candidate.words(),
        step_seconds=priced.seconds,
        bound_seconds=priced.bound_seconds or None,
        tokens_per_second_per_device=plan.tokens_per_second(priced),
        mfu=plan.mfu(priced),
        memory_bytes_by_pp_rank=list(priced.device_bytes),
        fit=fit_of_priced(plan, priced),
        behind=why_behind(priced, plan.best) if plan.best and priced.seconds < plan.best.seconds else None,
        score_seconds=priced.score,
    )


@record
class ExplanationDocument:
    """Why a layout that was asked about is not the best. `refused`: why it cannot run or does not fit."""

    asked: dict[str, int | str]
    layout: PricedLayout | None
    refused: str | None
    more_seconds: dict[str, float]


@record
class ExportedScript:
    """The script of another trainer, and what it cannot express."""

    trainer: str
    text: str
    cannot_express: list[str]


@record
class PlanDocument:
    """`fourfold plan --json`. `export`, `run_file`: with `--as`, with `--out`."""

    LAST: ClassVar = (
        "enough_devices", "obstacles", "least_memory_bytes", "counts", "search_seconds", "trainer", "run", "objective", "notes",
    )  # fmt: skip

    cluster: str
    device: str
    devices: int
    software: str
    gemm_dtype: str
    context_bytes: int
    allocator_fragmentation: float
    global_sequences: int
    sequence_length: int
    tokens: int
    memory_limit_bytes: int
    constraints: dict[str, list[int | str]]
    best: list[PricedLayout]
    within_interval: int | None
    best_step: StepDocument | None
    advice: AdviceDocument | None
    pareto: list[PricedLayout]
    riskier: PricedLayout | None
    surer: PricedLayout | None
    heuristic_baseline: PricedLayout | None
    heuristic_baseline_is_outside: bool
    explanations: list[ExplanationDocument]
    enough_devices: int | None
    obstacles: list[str]
    seconds_per_spared_gigabyte: dict[str, float]
    seconds_per_gigabyte_of_states: float | None
    least_memory_bytes: float | None
    counts: dict[str, int]
    search_seconds: float
    trainer: str | None
    run: CampaignDocument | None
    objective: dict[str, Any]
    notes: list[str]
    export: ExportedScript = ABSENT
    run_file: str = ABSENT


def plan_record(plan: Plan, verdict: list[str], advice: AdviceDocument | None, **asked: Any) -> PlanDocument:
    """A plan. `verdict`: on the best step, in lines. `asked`: the trainer, the run, the objective, and notes on the request."""
    request, found = plan.request, plan.found
    best, surer, baseline = plan.best_step, found.surely_fits, plan.heuristic_baseline
    return shown(
        PlanDocument,
        request,
        cluster=request.cluster.key,
        device=request.cluster.device.key,
        software=request.software.name,
        gemm_dtype=request.template.matmul_format,
        context_bytes=int(request.software.context_bytes),
        allocator_fragmentation=request.software.fragmentation,
        memory_limit_bytes=request.memory_bytes,
        constraints={limit.key: list(limit.values) for limit in request.constraints.stated},
        best=[priced_record(plan, each) for each in found.best],
        within_interval=num_within_interval(plan),
        best_step=step_record(best, verdict) if best is not None else None,
        advice=advice,
        pareto=[priced_record(plan, each) for each in plan.front],
        riskier=priced_record(plan, found.riskier) if found.riskier is not None else None,
        surer=priced_record(plan, surer) if surer is not None else None,
        heuristic_baseline=priced_record(plan, baseline) if baseline is not None else None,
        heuristic_baseline_is_outside=plan.baseline_is_outside,
        explanations=[
            ExplanationDocument(
                asked=dict(each.asked),
                layout=priced_record(plan, each.priced) if each.priced is not None else None,
                refused=each.refused,
                more_seconds=dict(each.differences),
            )
            for each in plan.explanations
        ],
        enough_devices=plan.enough,
        obstacles=list(plan.obstacles),
        seconds_per_spared_gigabyte=plan.spare_prices,
        seconds_per_gigabyte_of_states=plan.states_price,
        least_memory_bytes=found.smallest[1] if found.smallest is not None else None,
        counts=vars(found.counts),
        search_seconds=found.seconds,
        **asked,
    )
