"""Types of a predicted step and of a plan, as `simulate --json` and `plan --json` print them.

Units are in the names: `_bytes`, `_seconds`, `_flops`, `_per_second`. None: not known, or not stated.
"""

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

Interval = tuple[float, float]
exact = with_config(ConfigDict(extra="forbid"))
"""A document has these keys and no others."""


@exact
class FitDocument(TypedDict):
    """Whether a step fits, in a word that follows the probability; null where no published run tells it. `phrase`: as a headline
    says both."""

    word: Literal["sure", "likely", "perhaps", "unlikely", "no"]
    probability: float | None
    phrase: str


@exact
class LayoutDocument(TypedDict):
    """A layout by the run file's keys. `recompute` and `offload` are lists where blocks differ."""

    pp: int
    schedule: str
    virtual_stages: int
    dp_replicate: int
    dp_shard: int
    zero: int
    cp: int
    cp_method: str
    tp: int
    sequence_parallel: bool
    ep: int
    etp: int
    microbatch_sequences: int
    outermost: str
    overlap_experts: bool
    offload_optimizer: bool
    recompute: str | list[str]
    offload: str | list[str]


@exact
class TrafficDocument(TypedDict):
    """Communication of the groups along `axes`, on average over devices."""

    axes: str
    levels: list[str]
    sent_bytes: float
    busy_seconds: float
    exposed_seconds: float


@exact
class LinkDocument(TypedDict):
    """Bytes that a device sends through a level of the network, on average over devices, by axes. `device_bytes_per_second`: one
    direction, while all send; `full_seconds`: how long the bytes fill that, `full_share` of the step."""

    name: str
    devices: int
    device_bytes_per_second: float
    sent_bytes: dict[str, float]
    total_bytes: float
    full_seconds: float
    full_share: float


@exact
class RankMemory(TypedDict):
    """A pipeline rank's peak: of the device, of the program's buffers, and the instruction at which it is."""

    pp_rank: int
    device_bytes: int
    program_bytes: int
    instruction: str
    by_kind_bytes: dict[str, int]


@exact
class MemoryCurve(TypedDict):
    """Memory over the step: piece i lasts until `ends_seconds[i]`."""

    pp_rank: int
    ends_seconds: list[float]
    bytes: list[int]
    by_kind_bytes: dict[str, list[int]]


@exact
class FailuresDocument(TypedDict):
    """Failures of the whole job, and what checkpoints and spares make of them."""

    mean_seconds_between: float
    expected: float | None
    checkpoint_seconds: float
    restart_seconds: float
    repair_seconds: float
    young_interval_seconds: float
    daly_interval_seconds: float
    best_interval_seconds: float
    checkpoint_steps: int
    goodput_with_spares: float
    spare_devices: int
    goodput_without_spares: float


@exact
class CampaignDocument(TypedDict):
    """A whole training run. `dollars`: for `rented_devices` and spares; `training_dollars`: without failures and spares."""

    tokens: int
    steps: int
    training_seconds: float
    training_device_hours: float
    seconds: float | None
    device_hours: float | None
    goodput: float
    rented_devices: int
    dollars: float | None
    training_dollars: float | None
    joules: float | None
    failures: FailuresDocument | None


@exact
class PublishedDocument(TypedDict):
    """The figure that the literature states for this run. `error`: predicted over published, less 1."""

    source: str
    step_seconds: float
    error: float


@exact
class TimeShares(TypedDict):
    """Shares of all devices' time; they sum to 1. `exposed`: waiting for collectives, by the axes of their groups. `imbalance`:
    waiting for pipeline ranks that have more to compute; `bubble`: for the pipeline to fill and drain."""

    compute: float
    exposed: dict[str, float]
    bubble: float
    imbalance: float


@exact
class ChangeDocument(TypedDict):
    """A change of a layout that was simulated: overrides to copy, the step with it. `words`: what it gains."""

    overrides: list[str]
    step_seconds: float
    memory_bytes: int
    fits: bool
    fit: FitDocument
    words: str


@exact
class AdviceDocument(TypedDict):
    """Single changes of a layout that help, the best first. `limit`: what the step spends its time on, where none does."""

    changes: list[ChangeDocument]
    limit: str | None


@exact
class StepDocument(TypedDict):
    """A predicted step."""

    cluster: str
    device: str
    software: str
    gemm_dtype: str
    devices: int
    layout: LayoutDocument
    num_microbatches: int
    simulated_microbatches: int
    step_seconds: float
    step_seconds_interval: Interval | None
    tokens: int
    tokens_per_second: float
    tokens_per_second_per_device: float
    flops_per_token: float
    executed_flops: float
    peak_flops_per_second: float
    mfu: float
    hfu: float
    bubble_fraction: float
    imbalance_fraction: float
    waiting_fraction: float
    busiest_pp_rank: int
    time_shares: TimeShares
    spent_seconds: list[dict[str, float]]
    communication: list[TrafficDocument]
    links: list[LinkDocument]
    critical_path_seconds: dict[str, float]
    memory: list[RankMemory]
    memory_bytes: int
    memory_bytes_interval: Interval | None
    context_bytes: int
    allocator_fragmentation: float
    device_memory_bytes: int
    memory_limit_bytes: int
    fits: bool
    fit: FitDocument
    verdict: list[str]
    advice: NotRequired[AdviceDocument | None]
    host_memory_bytes: NotRequired[int]
    host_bound: NotRequired[dict[str, float]]
    memory_over_time: NotRequired[list[MemoryCurve]]
    run: NotRequired[CampaignDocument]


@with_config(ConfigDict(extra="allow"))
class NearestDocument(TypedDict):
    """A published run that is like this one: as measured, and as predicted. The other keys are its layout."""

    id: str
    source: str
    model: str
    device: str
    devices: int
    software: str
    sequence_length: int
    step_seconds: float
    predicted_step_seconds: float
    memory_bytes: float | None
    predicted_memory_bytes: float | None


@exact
class CheckDocument(TypedDict):
    """The price of a check for silent corruption. `seconds`: by which a step with it is longer; `share`: of all time."""

    name: str
    seconds: float
    every_steps: int
    share: float
    memory_bytes: int


@exact
class SimulationDocument(StepDocument):
    """`fourfold simulate --json`."""

    model_parameters: int
    nearest: list[NearestDocument]
    idle: str | None
    published: PublishedDocument | None
    checks: list[CheckDocument]


@exact
class EstimateDocument(TypedDict):
    """The time of the schedule alone: never the step's, and near it where little is exposed."""

    step_seconds: float
    tokens_per_second: float


@exact
class PricedLayout(TypedDict):
    """A layout that a search priced. `behind`: why it is not first though it is faster than the first; `distance`: to the nearest
    published run; `score_seconds`: by which layouts are ordered."""

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
    distance: float
    score_seconds: float


@exact
class ExplanationDocument(TypedDict):
    """Why a layout that was asked about is not the best. `refused`: why it cannot run or does not fit."""

    asked: dict[str, int | str]
    layout: PricedLayout | None
    refused: str | None
    more_seconds: dict[str, float]


@exact
class PlanDocument(TypedDict):
    """`fourfold plan --json`."""

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
