"""A predicted step, as `simulate --json` prints it.

Units are in the names: `_bytes`, `_seconds`, `_flops`, `_per_second`. None: not known, or not stated.
"""

from typing import Any, ClassVar, Literal

from fourfold.config.layout_section import LayoutKeys
from fourfold.evidence import interval
from fourfold.evidence.interval import Quantity
from fourfold.layout import Layout
from fourfold.results.fit import fit_of
from fourfold.results.record import ABSENT, open_record, record, record_of, shown
from fourfold.simulate.campaign import Campaign, StageLength
from fourfold.simulate.flows import flows_over_time
from fourfold.simulate.memory import MemoryOverTime, memory_over_time
from fourfold.simulate.step import Simulation
from fourfold.simulate.summary import LinkTraffic, StepSummary

Interval = tuple[float, float]


@record
class FitDocument:
    """Whether a step fits, in a word that follows the probability; null where no published run tells it. `phrase`: as a headline
    says both."""

    word: Literal["sure", "likely", "perhaps", "unlikely", "no"]
    probability: float | None
    phrase: str


@record_of(
    LayoutKeys,
    without=("segments_per_stage", "prefetch"),
    last=("outermost", "overlap_experts", "offload_optimizer", "recompute", "offload"),
)
class LayoutDocument:
    """A layout by the run file's keys. `recompute` and `offload` are lists where blocks differ."""

    virtual_stages: int
    dp_shard: int
    sequence_parallel: bool
    outermost: str


def layout_record(layout: Layout) -> LayoutDocument:
    """The layout by the keys of the run file."""
    policies = layout.recompute[1:-1]
    recompute = policies[0] if len({*policies}) == 1 else list(policies)
    offload = ["activations" if away else "none" for away in layout.offload[1 : len(policies) + 1]]
    stated = "none" if not any(layout.offload) else offload[0] if len({*offload}) == 1 else offload
    return shown(LayoutDocument, layout, recompute=recompute, offload=stated)


@record
class CollectiveCount:
    """Collectives of one kind in a step, on average over devices: how many, and the buffer of those that carry the most bytes."""

    kind: str
    number: float
    buffer_bytes: int


@record
class TrafficDocument:
    """Communication of the groups along `axes`, on average over devices. `ranks`: of a group, `ranks_per_node` of them in a node at
    most; 0 of the link to the host. `collectives`: by kind, those that carry most bytes first."""

    axes: str
    levels: list[str]
    sent_bytes: float
    busy_seconds: float
    exposed_seconds: float
    ranks: int
    ranks_per_node: int
    collectives: list[CollectiveCount]


@record
class LinkDocument:
    """Bytes that a device sends through a level of the network, on average over devices, by axes. `device_bytes_per_second`: one
    direction, while all send; `full_seconds`: how long the bytes fill that, `full_share` of the step."""

    name: str
    devices: int
    device_bytes_per_second: float
    sent_bytes: dict[str, float]
    total_bytes: float
    full_seconds: float
    full_share: float


@record
class RankMemory:
    """A pipeline rank's peak: of the device, of the program's buffers, and the instruction at which it is."""

    pp_rank: int
    device_bytes: int
    program_bytes: int
    instruction: str
    by_kind_bytes: dict[str, int]


@record
class MemoryCurve:
    """Memory over the step: piece i lasts until `ends_seconds[i]`."""

    pp_rank: int
    ends_seconds: list[float]
    bytes: list[int]
    by_kind_bytes: dict[str, list[int]]


def curve_record(pp_rank: int, curve: MemoryOverTime) -> MemoryCurve:
    """Memory of a pipeline rank's device over the step."""
    return MemoryCurve(
        pp_rank=pp_rank,
        ends_seconds=list(curve.ends),
        bytes=list(curve.bytes),
        by_kind_bytes={kind: list(sizes) for kind, sizes in curve.by_kind.items()},
    )


@record
class FlowCurve:
    """Bytes a second that a device of a pipeline rank sends through each level of the network, over the step that was simulated:
    piece i lasts until `ends_seconds[i]`. `levels`: innermost first, each by axes, without those that send nothing there."""

    pp_rank: int
    ends_seconds: list[float]
    levels: list[dict[str, list[float]]]


def flow_record(pp_rank: int, simulation: Simulation) -> FlowCurve:
    """Flows of a pipeline rank's device over the step; rates to five digits."""
    found = flows_over_time(simulation, pp_rank)
    levels: list[dict[str, list[float]]] = [{} for _ in simulation.prices.cluster.levels]
    for (axes, level), rates in found.rates.items():
        levels[level][axes] = [float(f"{each:.5g}") for each in rates]
    return FlowCurve(pp_rank=pp_rank, ends_seconds=list(found.ends), levels=levels)


@record
class FailuresDocument:
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


@record_of(StageLength)
class StageDocument:
    """A stage of a run, or all of it while the batch grows: `sequences` and `step_seconds` are those of its last step, `words` its
    layout."""


@record
class CampaignDocument:
    """A whole training run. `stages`: where its steps are not all alike. `dollars`: for `rented_devices` and spares;
    `training_dollars`: without failures and spares."""

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
    stages: list[StageDocument] | None = ABSENT


def campaign_record(run: Campaign) -> CampaignDocument:
    """A run's length and cost; null where a figure is not known or not finite."""
    found, more = run.failures, dict[str, Any]()
    more["stages"] = [shown(StageDocument, stage) for stage in run.stages] if run.stages else ABSENT
    if found is None:
        return shown(CampaignDocument, run, rented_devices=run.rented, **more)
    failures = shown(
        FailuresDocument,
        found,
        mean_seconds_between=found.mean_seconds,
        checkpoint_seconds=run.assumptions.checkpoint_seconds,
        restart_seconds=run.assumptions.restart_seconds,
        repair_seconds=run.assumptions.repair_seconds,
        young_interval_seconds=found.young_seconds,
        daly_interval_seconds=found.daly_seconds,
        best_interval_seconds=found.best_seconds,
        goodput_with_spares=found.with_spares.efficiency,
        spare_devices=found.with_spares.spare_devices,
        goodput_without_spares=found.without_spares.efficiency,
    )
    return shown(CampaignDocument, run, rented_devices=run.rented, failures=failures, **more)


@record
class PublishedDocument:
    """The figure that the literature states for this run. `error`: predicted over published, less 1."""

    source: str
    step_seconds: float
    error: float


@record
class TimeShares:
    """Shares of all devices' time; they sum to 1. `exposed`: waiting for collectives, by the axes of their groups. `imbalance`:
    waiting for pipeline ranks that have more to compute; `bubble`: for the pipeline to fill and drain."""

    compute: float
    exposed: dict[str, float]
    bubble: float
    imbalance: float


@record
class ChangeDocument:
    """A change of a layout that was simulated: overrides to copy, the step with it. `words`: what it gains."""

    overrides: list[str]
    step_seconds: float
    memory_bytes: int
    fits: bool
    fit: FitDocument
    words: str


@record
class AdviceDocument:
    """Single changes of a layout that help, the best first. `limit`: what the step spends its time on, where none does."""

    changes: list[ChangeDocument]
    limit: str | None


@record
class LayerDocument:
    """Layers that compute alike, and what one of them costs a microbatch on one device. `numbers`: those of the model's layers."""

    numbers: list[int]
    words: str
    recompute: str
    parameters: int
    forward_seconds: float
    backward_seconds: float
    kept_bytes: int


@record
class StepDocument:
    """A predicted step. `kernels`: of other software than fourfold, by the run file's words."""

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
    layers: list[LayerDocument]
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
    kernels: dict[str, str] = ABSENT
    advice: AdviceDocument | None = ABSENT
    host_memory_bytes: int = ABSENT
    host_bound: dict[str, float] = ABSENT
    memory_over_time: list[MemoryCurve] = ABSENT
    flows_over_time: list[FlowCurve] = ABSENT
    run: CampaignDocument = ABSENT


def interval_of(quantity: Quantity, summary: StepSummary) -> Interval | None:
    """(low, high) between which 80 % of such runs lie, of the step's seconds or the bytes of the fullest device; None where no
    published run tells."""
    found = interval(quantity, summary.step.simulation.prices)
    return (
        None
        if found is None
        else found.around(summary.seconds if quantity == "time" else max(summary.step.device_bytes))
    )


def step_record(
    summary: StepSummary,
    verdict: list[str],
    run: Campaign | None = None,
    with_curves: bool = False,
    with_flows: bool = False,
    **more: Any,
) -> StepDocument:
    """The figures of a step. `verdict`: in lines. `run`: the one that it is of. `with_flows`: with what flows over the
    step. `more`: fields of a `SimulationDocument`, which it is then."""
    simulation = summary.step.simulation
    layout, prices = simulation.spec.layout, simulation.prices
    own = {
        "cluster": prices.cluster.key,
        "device": prices.cluster.device.key,
        "software": prices.software.name,
        "kernels": prices.chosen_kernels or ABSENT,
        "gemm_dtype": prices.matmul_format,
        "layout": layout_record(layout),
        "simulated_microbatches": layout.num_microbatches,
        "step_seconds": summary.seconds,
        "step_seconds_interval": interval_of("time", summary),
        "tokens_per_second_per_device": summary.tokens_per_second / summary.devices,
        "busiest_pp_rank": summary.busiest_rank,
        "time_shares": TimeShares(**summary.time_shares),  # type: ignore[arg-type]
        "spent_seconds": summary.spent,
        "links": [_link(each, summary.seconds) for each in summary.links],
        "critical_path_seconds": summary.path,
        "layers": [shown(LayerDocument, each, numbers=list(each.numbers)) for each in summary.layers],
        "memory": [_rank_memory(summary, rank) for rank in range(layout.pp)],
        "memory_bytes": max(summary.step.device_bytes),
        "memory_bytes_interval": interval_of("memory", summary),
        "context_bytes": int(prices.software.context_bytes),
        "allocator_fragmentation": prices.software.fragmentation,
        "device_memory_bytes": summary.device.memory_bytes,
        "memory_limit_bytes": summary.memory_limit,
        "fit": fit_of(summary),
        "verdict": verdict,
        "host_memory_bytes": summary.step.host_bytes or ABSENT,
        "host_bound": summary.host_bound or ABSENT,
        "run": campaign_record(run) if run is not None else ABSENT,
    }
    if with_curves:
        own["memory_over_time"] = [curve_record(rank, memory_over_time(simulation, rank)) for rank in range(layout.pp)]
    if with_flows:
        own["flows_over_time"] = [flow_record(rank, simulation) for rank in range(layout.pp)]
    return shown(SimulationDocument if more else StepDocument, summary, **own, **more)


def _link(each: LinkTraffic, step_seconds: float) -> LinkDocument:
    level = each.level
    return shown(
        LinkDocument,
        each,
        name=level.name,
        devices=level.devices,
        device_bytes_per_second=level.device_bytes_per_second,
        full_share=each.full_seconds / step_seconds,
    )


def _rank_memory(summary: StepSummary, rank: int) -> RankMemory:
    simulation = summary.step.simulation
    peak = simulation.peaks[rank]
    return RankMemory(
        pp_rank=rank,
        device_bytes=summary.step.device_bytes[rank],
        program_bytes=peak.bytes,
        instruction=simulation.programs[rank].instructions[peak.index].short,
        by_kind_bytes=peak.by_kind(),
    )


@open_record
class NearestDocument:
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


@record
class CheckDocument:
    """The price of a check for silent corruption. `seconds`: by which a step with it is longer; `share`: of all time."""

    name: str
    seconds: float
    every_steps: int
    share: float
    memory_bytes: int


@record
class TraceFile:
    """Where the simulated step was written, and that in words."""

    file: str
    text: str


@record
class SimulationDocument(StepDocument):
    """`fourfold simulate --json`. `trace`: with `--trace`."""

    FIRST: ClassVar = ("model_parameters",)
    LAST: ClassVar = ("advice",)

    model_parameters: int
    nearest: list[NearestDocument]
    idle: str | None
    published: PublishedDocument | None
    checks: list[CheckDocument]
    trace: TraceFile = ABSENT


@record
class EstimateDocument:
    """The time of the schedule alone: never the step's, and near it where little is exposed."""

    step_seconds: float
    tokens_per_second: float
