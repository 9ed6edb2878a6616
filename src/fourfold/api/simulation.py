"""`fourfold.simulate`: a step of a run on a cluster, predicted, and the length and cost of the run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fourfold.api.advice import advice_of
from fourfold.api.inputs import (
    ClusterInput,
    Number,
    Overrides,
    RunInput,
    check_counted,
    cluster_name,
    is_counted,
    loaded_cluster,
    on_cluster,
    override_texts,
    readable_config,
)
from fourfold.api.numbers import parse_number
from fourfold.api.software import software_overrides_of
from fourfold.config import RunConfig, UserError
from fourfold.config.schema import GemmDtype
from fourfold.cost.prices import Prices
from fourfold.hardware import THIS, Cluster, cluster_names
from fourfold.huggingface import resolve_model
from fourfold.launch.resolve import ResolvedRun, resolve_run, stated_vocab_size
from fourfold.layout.resolve import filling_ranks
from fourfold.plan.advice import Advice
from fourfold.report.fit import Fit, fit_of
from fourfold.report.format_advice import advice_document
from fourfold.report.format_nearest import nearest_document
from fourfold.report.simulation_document import simulation_document
from fourfold.simulate.campaign import REPAIR_SECONDS, RESTART_SECONDS, Assumptions, Campaign, campaign
from fourfold.simulate.campaign import checkpoint_seconds as usual_checkpoint_seconds
from fourfold.simulate.checks import CheckPrice, check_prices
from fourfold.simulate.paused_garbage_collection import without_collection
from fourfold.simulate.prediction import check_layers, check_size, predict_step, step_for_trace
from fourfold.simulate.published import PublishedStep, published_step
from fourfold.simulate.run_prices import (
    SoftwareOverrides,
    check_compute,
    check_devices,
    executed_precision,
    idle_devices,
    prices_for,
    transport_on,
)
from fourfold.simulate.summary import StepSummary
from fourfold.simulate.trace import write_trace


@dataclass(frozen=True, repr=False)
class SimulationResult:
    """A predicted step. `summary`: its figures, by rank and kind too. `campaign`: length and cost of the run, where its tokens are
    known. `published`: the literature's figure beside it. `idle`: devices that the layout leaves idle, and what would use them.
    `stated`: assumptions of the campaign that were given. `checks`: prices of the run's checks for silent corruption. `again`:
    simulates the same with more overrides."""

    resolved: ResolvedRun
    cluster: Cluster
    summary: StepSummary
    campaign: Campaign | None
    published: PublishedStep | None
    idle: str | None
    stated: frozenset[str]
    checks: tuple[CheckPrice, ...] = ()
    again: Callable[[Sequence[str]], "SimulationResult"] | None = None

    @cached_property
    def advice(self) -> Advice | None:
        """Single changes of the layout that help, each simulated; None where the planner has no words for the layout. Takes some
        seconds for a long pipeline."""
        return advice_of(self)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.summary.seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all devices together."""
        return self.summary.tokens_per_second

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, from 0 to 1."""
        return self.summary.mfu

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the fullest device."""
        return max(self.summary.step.device_bytes)

    @property
    def fits(self) -> bool:
        """Whether the fullest device holds its peak."""
        return self.summary.fits

    @property
    def fit(self) -> Fit:
        """Whether it fits, in a word that follows the probability, and the probability."""
        return fit_of(self.summary)

    def write_trace(self, path: str | Path) -> str:
        """Writes the simulated step for ui.perfetto.dev; what was written, in a line. Raises `UserError`."""
        shown, cut = step_for_trace(self.resolved.spec, self.summary.step)
        events = write_trace(shown, Path(path))
        return f"trace of {events} events written to {path}; open it at ui.perfetto.dev{cut}"

    def to_json(self, memory_curves: bool = False, advice: bool = True) -> dict[str, Any]:
        """The document of `fourfold simulate --json`; units are in the keys. `memory_curves`: with memory over the step. `advice`:
        with changes that help, which takes longer than the rest."""
        document = simulation_document(self.summary, self.campaign, memory_curves)
        published = None if self.published is None else self.published.document(self.step_seconds)
        return {
            "model_parameters": self.resolved.num_parameters,
            **document,
            "nearest": nearest_document(self.summary),
            "idle": self.idle,
            "published": published,
            "checks": [asdict(check) for check in self.checks],
            **({"advice": advice_document(self.advice, self.summary)} if advice else {}),
        }

    def __repr__(self) -> str:
        return (
            f"SimulationResult({self.cluster.key}: {self.step_seconds:.4g} s a step, MFU {100 * self.mfu:.1f} %, "
            f"{self.memory_bytes / 1e9:.3g} GB a device, {self.fit.phrase})"
        )

    def _repr_html_(self) -> str:
        from fourfold.api.notebook import simulation_html

        return simulation_html(self)


@without_collection()
def simulate(
    run: RunInput,
    overrides: Overrides = (),
    *,
    cluster: ClusterInput | None = None,
    ranks: int | None = None,
    software: str | None = None,
    gemm_dtype: GemmDtype | None = None,
    context_bytes: Number | None = None,
    fragmentation: float | None = None,
    tokens: Number | None = None,
    failure_hours: Number | None = None,
    checkpoint_seconds: Number | None = None,
    restart_seconds: Number | None = None,
    repair_seconds: Number | None = None,
    price: Number | None = None,
    trust: bool = False,
) -> SimulationResult:
    """Predict a step of a run on a cluster: time, MFU, memory, and the run's length and cost. Needs neither torch nor the cluster.

    Arguments are the options of `fourfold simulate`, with the same defaults: `cluster` and `software` are those of the run where
    left out, `trust` imports the code that the run names.

    Units: `tokens` of the whole run, `price` in dollars a device hour, `failure_hours` between two failures of one device,
    `checkpoint_seconds` of a save, `restart_seconds` of a start, `repair_seconds` until a device is back, `context_bytes` of a
    process, `fragmentation` as a share of the allocated memory.

    Raises `UserError` with the command's message. A step that does not fit is a result: `fits` is False.
    """
    config = readable_config(run, overrides, trust)
    software_overrides = software_overrides_of(gemm_dtype, context_bytes, fragmentation)
    resolved, machine, prices = priced_run(config, cluster, ranks, software, software_overrides)
    is_as_published = not overrides and (cluster is None or cluster_name(cluster) == config.cluster.preset)
    rents_all = ranks is None and is_counted(_cluster(config, cluster))
    idle = idle_devices(resolved.layout, config.batch.global_sequences, machine) if rents_all else None
    given = {
        "checkpoint_seconds": checkpoint_seconds,
        "restart_seconds": restart_seconds,
        "repair_seconds": repair_seconds,
    }
    assumptions = _assumptions(resolved, machine, failure_hours, price, given)
    wanted = _tokens(config, tokens)
    summary = StepSummary(predict_step(resolved.spec, prices, resolved.compiled), resolved.layout.num_microbatches)
    published = None
    if is_as_published:
        published = published_step(resolved.config, resolved.model, resolved.layout, machine.device)
    length = None
    if wanted is not None:
        step, devices = (wanted, summary.tokens, summary.seconds), resolved.layout.world_size
        rented = machine.devices if idle is not None else devices
        length = campaign(*step, devices, machine.node_devices, assumptions, rented)

    def again(more: Sequence[str]) -> SimulationResult:
        options = {"cluster": cluster, "ranks": ranks, "software": software, "gemm_dtype": gemm_dtype}
        sizes = {"context_bytes": context_bytes, "fragmentation": fragmentation}
        return simulate(run, (*override_texts(overrides), *more), **options, **sizes, trust=trust)  # type: ignore[arg-type]

    stated = frozenset(name for name, value in given.items() if value is not None)
    checks = tuple(check_prices(summary.step, resolved.spec, config.faults, config.checkpoint.memory_every_steps))
    return SimulationResult(resolved, machine, summary, length, published, idle, stated, checks, again)


def priced_run(
    config: RunConfig,
    cluster: ClusterInput | None,
    ranks: int | None,
    software: str | None,
    software_overrides: SoftwareOverrides,
) -> tuple[ResolvedRun, Cluster, Prices]:
    """The run's layout on its cluster, and the prices of all that it does. Arguments as in `simulate`. Raises `UserError`."""
    where = _cluster(config, cluster)
    software = software if software is not None else config.cluster.software
    software_overrides = software_overrides.of_run(config.cluster, software)
    machine = loaded_cluster(where)
    config = on_cluster(config, where)
    check_compute(config.precision.compute, machine)
    precision, software_overrides = executed_precision(config.precision, machine, software, software_overrides)
    config = config.model_copy(update={"precision": precision})
    vocabulary = stated_vocab_size(config.model, config.data)
    model = resolve_model(config.model, vocabulary)
    check_layers(model)
    wanted_ranks = ranks if ranks is not None else filling_ranks(config, model, machine.devices)
    if ranks is None and (config.layout.auto or config.layout.dp_shard is None):
        check_counted(where)
    resolved = resolve_run(config, wanted_ranks, vocabulary, transport_on(machine))
    check_devices(resolved.layout, machine)
    prices = prices_for(resolved.config, resolved.spec, machine, software, software_overrides)
    check_size(resolved.spec)
    return resolved, machine, prices


def _cluster(config: RunConfig, stated: ClusterInput | None) -> ClusterInput:
    if stated is None and config.cluster.preset == THIS:
        known = cluster_names()
        shown = [
            name for name in ("h100-24576", "h800-2048", "dgx-a100", "gb200-nvl72", "tpu-v5p-8960") if name in known
        ]
        raise UserError(
            f"--cluster is missing, and the run file's [cluster] names none; what works: --cluster dgx-h100:64, a cluster file, or "
            f"one of {', '.join(shown)} and {len(known) - len(shown)} more in src/fourfold/hardware/clusters"
        )
    return stated if stated is not None else config.cluster.preset


def _tokens(config: RunConfig, stated: Number | None) -> int | None:
    batch = config.batch
    if stated is not None:
        return math.ceil(parse_number(stated, "--tokens", "15.6T", least=1))
    if batch.tokens is not None:
        return batch.tokens
    return batch.steps * batch.global_sequences * batch.sequence_length if batch.steps is not None else None


def _assumptions(
    resolved: ResolvedRun,
    machine: Cluster,
    failure_hours: Number | None,
    price: Number | None,
    given: dict[str, Number | None],
) -> Assumptions:
    """The given assumptions, else the cluster's, else the defaults."""

    def number(stated: Number | None, option: str, example: str, default: float, least: float) -> float:
        return default if stated is None else parse_number(stated, option, example, least, 1e9)

    hours, dollars = machine.mean_hours_between_failures_per_device, machine.dollars_per_device_hour
    if failure_hours is not None:
        hours = parse_number(failure_hours, "--failure-hours", "50k", 1e-3, 1e12)
    if price is not None:
        dollars = parse_number(price, "--price", "2.5", 0.0, 1e6)
    usual = usual_checkpoint_seconds(resolved.spec.checkpoint_bytes, resolved.layout.world_size, machine)
    return Assumptions(
        failure_hours=hours,
        checkpoint_seconds=number(given["checkpoint_seconds"], "--checkpoint-seconds", "60", usual, 1e-3),
        restart_seconds=number(given["restart_seconds"], "--restart-seconds", "600", RESTART_SECONDS, 0.0),
        repair_seconds=number(given["repair_seconds"], "--repair-seconds", "14400", REPAIR_SECONDS, 0.0),
        dollars_per_device_hour=dollars,
        watts_per_device=machine.watts_per_device,
    )
