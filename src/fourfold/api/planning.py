"""`fourfold.plan`: the fastest layouts of a model on a cluster, found by simulating the programs that would run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fourfold.api.inputs import ClusterInput, Number, Overrides, RunInput, check_word
from fourfold.api.numbers import parse_number
from fourfold.api.plan_request import Asked, Options, model_notes, planned_run, read_request
from fourfold.api.software import software_overrides_of
from fourfold.config import RunConfig, UserError
from fourfold.config.schema import GemmDtype
from fourfold.plan.explain import parse_fixed
from fourfold.plan.goals import cheapest, fewest, largest, longest
from fourfold.plan.planner import make_plan
from fourfold.plan.pricing import Priced
from fourfold.plan.request import MEMORY_SHARE, Request
from fourfold.plan.result import Plan
from fourfold.plan.search import BUDGET, Progress
from fourfold.report.format_plan import plan_document

Objective = Literal["throughput", "cost", "devices", "context", "model"]
Dtype = Literal["bf16", "fp32"]


@dataclass(frozen=True, repr=False)
class PlanResult:
    """A plan and what was asked for. `found`: the search's result. `searched`: lines on the way to the objective."""

    asked: Asked
    found: Plan
    objective: Objective
    searched: tuple[str, ...]
    tokens: float | None

    @property
    def request(self) -> Request:
        """The request that was planned at last: objectives choose devices, sequences or the model."""
        return self.found.request

    @property
    def layouts(self) -> tuple[Priced, ...]:
        """The layouts that fit, fastest first. Each has `candidate` (its degrees), `seconds` of a step and `memory_bytes` of the
        fullest device."""
        return self.found.found.best

    @property
    def best(self) -> Priced | None:
        """The fastest layout; None where nothing was found to fit."""
        return self.found.best

    @property
    def notes(self) -> list[str]:
        """Where the model is planned as a near one, or beyond what it was made for."""
        return model_notes(self.asked, self.request)

    def run(self, layout: Priced | None = None) -> RunConfig:
        """The run of a layout, the best by default: `simulate`, `verify` and `train` take it. Raises `UserError` where nothing
        fits."""
        chosen = layout if layout is not None else self.best
        if chosen is None:
            raise UserError("the plan found no layout that fits, so it has no run; what works: a larger cluster")
        return planned_run(self.asked, self.request, chosen.candidate, self.tokens)

    def to_json(self) -> dict[str, Any]:
        """The document of `fourfold plan --json`; units are in the keys."""
        document = plan_document(self.found)
        document["objective"] = {"name": self.objective, "said": list(self.searched)}
        document["notes"] = self.notes
        return document

    def __repr__(self) -> str:
        where = f"{self.request.devices} x {self.request.cluster.device.name}"
        if self.best is None:
            return f"PlanResult({where}: nothing fits)"
        return f"PlanResult({where}: {self.best.candidate.words()}, {self.best.seconds:.4g} s a step)"

    def _repr_html_(self) -> str:
        from fourfold.api.notebook import plan_html

        return plan_html(self)


def plan(
    run: RunInput | None = None,
    overrides: Overrides = (),
    *,
    model: str | os.PathLike[str] | None = None,
    cluster: ClusterInput | None = None,
    sequence_length: Number | None = None,
    batch_tokens: Number | None = None,
    batch_sequences: int | None = None,
    dtype: Dtype | None = None,
    software: str | None = None,
    gemm_dtype: GemmDtype | None = None,
    context_bytes: Number | None = None,
    fragmentation: float | None = None,
    objective: Objective = "throughput",
    tokens: Number | None = None,
    deadline_days: float | None = None,
    price: Number | None = None,
    explain: Sequence[str | Mapping[str, int | str]] = (),
    keep: int = 5,
    budget: float = BUDGET,
    memory_share: float = MEMORY_SHARE,
    progress: Progress | None = None,
) -> PlanResult:
    """Find the fastest layouts of a model on a cluster. Needs neither torch nor the cluster.

    Give a run, or `model`, `cluster`, `sequence_length` and a batch. Arguments are the options of `fourfold plan`, with the same
    defaults: `model` is a preset or a folder with a config.json, `sequence_length` counts tokens, `batch_tokens` or
    `batch_sequences` state the batch of a step, `explain` names fields of layouts (`"tp=8,pp=4"` or `{"tp": 8}`) to set beside the
    best, `keep` says how many layouts to return, `budget` is work (1 is about a second of one core), `price` counts dollars a
    device hour. `progress` is called with a text and the share that is done.

    Raises `UserError` with the command's message. Where nothing fits, `best` is None.
    """
    _check(memory_share, keep, budget, objective, tokens, price, deadline_days)
    check_word("--objective", objective, get_args(Objective))
    check_word("--dtype", dtype, get_args(Dtype))
    fixed = [parse_fixed(_text(each)) for each in explain]
    batch = (sequence_length, batch_tokens, batch_sequences)
    software_overrides = software_overrides_of(gemm_dtype, context_bytes, fragmentation)
    name = os.fspath(model) if model is not None else None
    asked = read_request(
        Options(run, overrides, name, cluster, *batch, dtype, software, memory_share, software_overrides)
    )
    request, searched = _aimed(asked.request, objective, tokens, deadline_days, price, budget, progress)
    found = make_plan(request, fixed, budget, keep, progress)
    length = _needed(tokens, objective) if tokens is not None else None
    return PlanResult(asked, found, objective, tuple(searched), length)


def _text(fields: str | Mapping[str, int | str]) -> str:
    return fields if isinstance(fields, str) else ",".join(f"{key}={value}" for key, value in fields.items())


def _check(
    memory_share: float,
    keep: int,
    budget: float,
    objective: str,
    tokens: Number | None,
    price: Number | None,
    deadline_days: float | None,
) -> None:
    """Raises `UserError` for an option that cannot be, or that says nothing here."""
    if not 0 < memory_share <= 1:
        raise UserError(f"--memory-share {memory_share}: allowed: more than 0, at most 1; a value that works: 0.94")
    if keep < 1 or keep > 1000:
        raise UserError(f"--keep {keep}: allowed: 1 to 1000; a value that works: 5")
    if not 0 < budget <= 86_400:
        raise UserError(f"--budget {budget}: allowed: more than 0, at most 86400; a value that works: 60")
    for option, value, wanting in (
        ("--tokens", tokens, ("cost", "devices")),
        ("--price", price, ("cost",)),
        ("--deadline-days", deadline_days, ("devices",)),
    ):
        if value is not None and objective not in wanting:
            raise UserError(
                f"{option} {value}: says something only with --objective {' or '.join(wanting)}; allowed there alone"
            )


def _aimed(
    request: Request,
    objective: str,
    tokens: Number | None,
    deadline_days: float | None,
    price: Number | None,
    budget: float,
    progress: Progress | None,
) -> tuple[Request, list[str]]:
    """The request to plan for an objective, and lines about the way there."""
    if objective == "cost":
        number, dollars = _needed(tokens, objective), _price(price, request)
        return cheapest(request, number, dollars, budget, progress)
    if objective == "devices":
        number, seconds = _needed(tokens, objective), _deadline(deadline_days)
        return fewest(request, number, seconds, budget, progress)
    if objective == "context":
        return longest(request, budget, progress)
    if objective == "model":
        return largest(request, budget, progress)
    return request, []


def _needed(tokens: Number | None, objective: str) -> float:
    if tokens is None:
        raise UserError(f"--objective {objective} needs --tokens; a value that works: --tokens 15T")
    return parse_number(tokens, "--tokens", "15T", least=1)


def _deadline(days: float | None) -> float:
    if days is None or not 0 < days < 1e6:
        raise UserError(f"--deadline-days {days}: allowed: more than 0; a value that works: --deadline-days 60")
    return days * 86_400


def _price(price: Number | None, request: Request) -> float:
    if price is not None:
        return parse_number(price, "--price", "2.5", least=1e-6, most=1e6)
    stated = request.cluster.dollars_per_device_hour
    if stated is None:
        raise UserError(f"--objective cost: the cluster {request.cluster.key} states no price; what works: --price 2.5")
    return stated
