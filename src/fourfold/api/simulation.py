"""`fourfold.simulate`: a step of a run on a cluster, predicted, the length and cost of the run, and changes that help."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fourfold.api.inputs import (
    ClusterInput,
    Number,
    answers,
    check_counted,
    cluster_name,
    config_of,
    is_counted,
    loaded_cluster,
    on_cluster,
    readable_config,
)
from fourfold.api.numbers import parse_number
from fourfold.api.options import CampaignOptions, PlaceOptions, SimulateOptions
from fourfold.config import RunConfig, UserError
from fourfold.config.stages import Course, Stage, course_of
from fourfold.cost.prices import Prices
from fourfold.evidence import nearest_runs
from fourfold.hardware import THIS, Cluster, cluster_names
from fourfold.huggingface import resolve_model
from fourfold.launch.resolve import ResolvedRun, resolve_run, stated_vocab_size
from fourfold.launch.stages import require_alike, require_batches
from fourfold.layout.resolve import filling_ranks
from fourfold.plan.advice import BUDGET, Advice, advise, candidate_of, changed_keys, overrides_of
from fourfold.plan.budget import SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request, kept_keys
from fourfold.program.compiled import CompiledStages
from fourfold.program.spec import StepSpec
from fourfold.report.format_campaign import campaign_lines
from fourfold.report.format_outlook import advice_lines, advice_record
from fourfold.report.format_run import layout_line, model_line
from fourfold.report.format_simulation import (
    check_lines,
    chosen_ranks,
    communication_lines,
    format_software,
    kernel_lines,
    late_lines,
    layer_lines,
    matrix_lines,
    memory_curve_lines,
    memory_lines,
    nearest_lines,
    spent_lines,
    step_lines,
)
from fourfold.report.screen import columns
from fourfold.report.verdict import interval_lines, verdict_lines
from fourfold.results.fit import Fit, fit_of
from fourfold.results.prediction import PublishedDocument, step_record
from fourfold.results.record import document
from fourfold.simulate.campaign import REPAIR_SECONDS, RESTART_SECONDS, Assumptions, Campaign, StageLength, campaign
from fourfold.simulate.campaign import checkpoint_seconds as usual_checkpoint_seconds
from fourfold.simulate.checks import CheckPrice, check_prices
from fourfold.simulate.paused_garbage_collection import without_collection
from fourfold.simulate.prediction import check_layers, check_size, predict_step, step_for_trace
from fourfold.simulate.published import PublishedStep, published_step
from fourfold.simulate.run_prices import (
    check_compute,
    check_devices,
    executed_precision,
    idle_devices,
    prices_for,
    transport_on,
)
from fourfold.simulate.summary import StepSummary
from fourfold.simulate.trace import write_trace

SIMULATED_BATCHES = 9
"""Batches of a ramp that are simulated at most."""
_INTERRUPTIONS = ("checkpoint_seconds", "restart_seconds", "repair_seconds")


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
        """Whether the fullest device holds its peak, in every stage."""
        return self.summary.fits and all(stage.fits for stage in (self.campaign.stages if self.campaign else ()))

    @property
    def fit(self) -> Fit:
        """Whether it fits, in a word that follows the probability, and the probability."""
        return fit_of(self.summary)

    def write_trace(self, path: str | Path) -> str:
        """Writes the simulated step for ui.perfetto.dev; what was written, in a line. Raises `UserError`."""
        shown, cut = step_for_trace(self.resolved.spec, self.summary.step)
        events = write_trace(shown, Path(path))
        return f"trace of {events} events written to {path}; open it at ui.perfetto.dev{cut}"

    def lines(self, pp_rank: int | None = None, memory: bool = False) -> list[str]:
        """The text of `fourfold simulate`. `pp_rank`: alone in the tables; `memory`: drawn over the step. Raises `UserError` for a
        layout that advice cannot change."""
        resolved, machine, summary = self.resolved, self.cluster, self.summary
        ranks = chosen_ranks(resolved.layout.pp, pp_rank, columns())
        used = "" if machine.devices == summary.devices else f", {summary.devices:,} of them used"
        software = format_software(summary.step.simulation.prices)
        lines = [
            *verdict_lines(summary),
            *([f"idle:   {self.idle}"] if self.idle is not None else []),
            *advice_lines(self.advice, summary),
            "",
            model_line(resolved),
            layout_line(resolved),
            f"on {machine.key}: {machine.devices:,} x {machine.device.name}{used} | software: {software}",
            *kernel_lines(summary.step.simulation.prices),
            "",
            *step_lines(summary),
            *matrix_lines(summary),
            *interval_lines(summary),
            *([self.published.line(summary.seconds)] if self.published is not None else []),
            "",
            *late_lines(summary),
            "",
            *spent_lines(summary, ranks),
        ]
        kinds = layer_lines(summary)
        lines += ["", *kinds] if kinds else []
        traffic = communication_lines(summary)
        lines += ["", *traffic] if traffic else []
        lines += ["", *memory_lines(summary, ranks)]
        if memory:
            lines += ["", *memory_curve_lines(summary, ranks)]
        lines += ["", *check_lines(self.checks)] if self.checks else []
        lines += ["", *nearest_lines(summary)]
        if self.campaign is not None:
            lines += ["", *campaign_lines(self.campaign, resolved.spec.checkpoint_bytes, self.stated)]
        else:
            lines += ["", "run        how long it is, is not stated: --tokens 15.6T, or batch.steps"]
        return lines

    def to_json(self, memory_curves: bool = False, advice: bool = True, flows: bool = False) -> dict[str, Any]:
        """The document of `fourfold simulate --json`; units are in the keys. `memory_curves`: with memory over the step. `flows`:
        with what flows through the levels of the network over the step. `advice`: with changes that help, which takes longer than
        the rest."""
        summary, published = self.summary, self.published
        simulation, more = summary.step.simulation, dict[str, Any]()
        if advice:
            more["advice"] = advice_record(self.advice, summary)
        found = step_record(
            summary,
            verdict_lines(summary),
            self.campaign,
            memory_curves,
            flows,
            model_parameters=self.resolved.num_parameters,
            nearest=[run.document() for run in nearest_runs(simulation.spec, simulation.prices)],
            idle=self.idle,
            published=_beside(published, self.step_seconds) if published is not None else None,
            checks=self.checks,
            **more,
        )
        return dict(document(found))

    def __repr__(self) -> str:
        return (
            f"SimulationResult({self.cluster.key}: {self.step_seconds:.4g} s a step, MFU {100 * self.mfu:.1f} %, "
            f"{self.memory_bytes / 1e9:.3g} GB a device, {self.fit.phrase})"
        )

    def _repr_html_(self) -> str:
        from fourfold.api.notebook import simulation_html

        return simulation_html(self)


@without_collection()
@answers(SimulateOptions)
def simulate(asked: SimulateOptions) -> SimulationResult:
    """Predict a step of a run on a cluster: time, MFU, memory, and the run's length and cost. Needs neither torch nor the cluster.

    Arguments are the options of `fourfold simulate`, with the same defaults: `cluster` and `software` are those of the run where
    left out, `trust` imports the code that the run names.

    Units: `tokens` of the whole run, `price` in dollars a device hour, `failure_hours` between two failures of one device,
    `checkpoint_seconds` of a save, `restart_seconds` of a start, `repair_seconds` until a device is back, `context_bytes` of a
    process, `fragmentation` as a share of the allocated memory.

    Raises `UserError` with the command's message. A step that does not fit is a result: `fits` is False.
    """
    config = readable_config(asked.run, asked.overrides, asked.trust)
    if config.stage or config.batch.ramp:
        return _simulate_course(config, asked)
    return _again(config, asked)


def _again(config: RunConfig, asked: SimulateOptions) -> SimulationResult:
    return _simulate_alike(config, asked, lambda more: _again(config_of(config, more), asked))


def _simulate_course(config: RunConfig, asked: SimulateOptions) -> SimulationResult:
    """A run whose steps are not all alike: the step of the stage that takes the longest, and the length of all."""
    if asked.tokens is not None:
        batch = {"tokens": _tokens(config, asked.tokens), "steps": None}
        config = config.model_copy(update={"batch": config.batch.model_copy(update=batch)})
    if config.batch.steps is None and config.batch.tokens is None and not config.stage:
        return _again(config, asked)  # at its full batch, for no length is stated
    course, found = course_of(config), list[tuple[SimulationResult, StageLength]]()
    for stage in course.stages:
        own = stage.config.model_copy(update={"batch": stage.config.batch.model_copy(update={"ramp": []})})
        try:
            result = _again(own, asked)
            require_batches(course, stage, result.resolved)
            require_alike(found[0][0].resolved if found else result.resolved, result.resolved)
        except UserError as error:
            raise UserError(f"{stage}: {error}" if config.stage else str(error)) from None
        found.append((result, _length(course, stage, result)))
    main, _ = max(found, key=lambda each: each[1].seconds)
    assert main.campaign is not None
    step, devices = (course.tokens, main.summary.tokens, main.step_seconds), main.resolved.layout.world_size
    given, rented = main.campaign.assumptions, main.campaign.rented
    lengths = [length for _, length in found]
    length = campaign(*step, devices, main.cluster.node_devices, given, rented, lengths)
    return replace(main, campaign=length)


def _length(course: Course, stage: Stage, result: SimulationResult) -> StageLength:
    batches = course.batches_of(stage)
    seconds = _step_seconds(result, [each.sequences for each in batches])
    last = batches[-1]
    return StageLength(
        number=stage.number + 1,
        name=stage.name,
        steps=stage.end - stage.begin,
        tokens=course.tokens_before(stage.end) - course.tokens_before(stage.begin),
        sequences=last.sequences,
        length=last.length,
        step_seconds=seconds[last.sequences],
        seconds=sum((each.end - each.step) * seconds[each.sequences] for each in batches),
        words=result.resolved.degrees,
        fits=result.summary.fits,
    )


def _step_seconds(result: SimulationResult, sequences: Sequence[int]) -> dict[int, float]:
    """Seconds of a step with each of these batches: simulated where there are few, else some of them, and the others on straight
    lines between those."""
    spec, prices = result.resolved.spec, result.summary.step.simulation.prices
    wanted = sorted(set(sequences))
    every = max(1, -(-(len(wanted) - 1) // (SIMULATED_BATCHES - 1)))
    known: dict[int, float] = {}
    for size in sorted({*wanted[::every], wanted[-1]}):
        own = spec.with_sequences(size)
        is_full = own.layout == spec.layout
        known[size] = result.step_seconds if is_full else _seconds(own, prices, result.resolved.compiled)
    sizes = sorted(known)
    for size in wanted:
        if size not in known:
            right = bisect_left(sizes, size)
            low, high = sizes[right - 1], sizes[right]
            known[size] = known[low] + (known[high] - known[low]) * (size - low) / (high - low)
    return known


def _seconds(spec: StepSpec, prices: Prices, compiled: CompiledStages) -> float:
    return StepSummary(predict_step(spec, prices, compiled), spec.layout.num_microbatches).seconds


def _simulate_alike(
    config: RunConfig, asked: SimulateOptions, again: Callable[[Sequence[str]], SimulationResult]
) -> SimulationResult:
    """A run of steps that are all alike."""
    cluster, ranks = asked.cluster, asked.ranks
    resolved, machine, prices = priced_run(config, asked)
    is_as_published = not asked.overrides and (cluster is None or cluster_name(cluster) == config.cluster.preset)
    rents_all = ranks is None and is_counted(_cluster(config, cluster))
    idle = idle_devices(resolved.layout, config.batch.global_sequences, machine) if rents_all else None
    assumptions = _assumptions(resolved, machine, asked)
    wanted = _tokens(config, asked.tokens)
    summary = StepSummary(predict_step(resolved.spec, prices, resolved.compiled), resolved.layout.num_microbatches)
    published = None
    if is_as_published:
        published = published_step(resolved.config, resolved.model, resolved.layout, machine.device)
    length = None
    if wanted is not None:
        step, devices = (wanted, summary.tokens, summary.seconds), resolved.layout.world_size
        rented = machine.devices if idle is not None else devices
        length = campaign(*step, devices, machine.node_devices, assumptions, rented)

    given = frozenset(name for name in _INTERRUPTIONS if getattr(asked, name) is not None)
    section, every = config.metrics, config.checkpoint.memory_every_steps
    checks = tuple(check_prices(summary.step, resolved.spec, config.faults, every, section))
    return SimulationResult(resolved, machine, summary, length, published, idle, given, checks, again)


def priced_run(config: RunConfig, asked: PlaceOptions) -> tuple[ResolvedRun, Cluster, Prices]:
    """The run's layout on its cluster, and the prices of all that it does. Raises `UserError`."""
    software_overrides = asked.software_overrides()
    where = _cluster(config, asked.cluster)
    software = asked.software if asked.software is not None else config.cluster.software
    software_overrides = software_overrides.of_run(config.cluster, software)
    machine = loaded_cluster(where)
    config = on_cluster(config, where)
    check_compute(config.precision.compute, machine)
    precision, software_overrides = executed_precision(config.precision, machine, software, software_overrides)
    config = config.model_copy(update={"precision": precision})
    vocabulary = stated_vocab_size(config.model, config.data)
    model = resolve_model(config.model, vocabulary)
    check_layers(model)
    wanted_ranks = asked.ranks if asked.ranks is not None else filling_ranks(config, model, machine.devices)
    if asked.ranks is None and (config.layout.auto or config.layout.dp_shard is None):
        check_counted(where)
    resolved = resolve_run(config, wanted_ranks, vocabulary, transport_on(machine))
    check_devices(resolved.layout, machine)
    prices = prices_for(resolved.config, resolved.spec, machine, software, software_overrides)
    check_size(resolved.spec)
    return resolved, machine, prices


def _beside(published: PublishedStep, predicted_seconds: float) -> PublishedDocument:
    error = published.error(predicted_seconds)
    return PublishedDocument(source=published.source, step_seconds=published.seconds, error=error)


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


def _assumptions(resolved: ResolvedRun, machine: Cluster, asked: CampaignOptions) -> Assumptions:
    """The given assumptions, else the cluster's, else the defaults."""

    def number(stated: Number | None, option: str, example: str, default: float, least: float) -> float:
        return default if stated is None else parse_number(stated, option, example, least, 1e9)

    hours, dollars = machine.mean_hours_between_failures_per_device, machine.dollars_per_device_hour
    if asked.failure_hours is not None:
        hours = parse_number(asked.failure_hours, "--failure-hours", "50k", 1e-3, 1e12)
    if asked.price is not None:
        dollars = parse_number(asked.price, "--price", "2.5", 0.0, 1e6)
    usual = usual_checkpoint_seconds(resolved.spec.checkpoint_bytes, resolved.layout.world_size, machine)
    return Assumptions(
        failure_hours=hours,
        checkpoint_seconds=number(asked.checkpoint_seconds, "--checkpoint-seconds", "60", usual, 1e-3),
        restart_seconds=number(asked.restart_seconds, "--restart-seconds", "600", RESTART_SECONDS, 0.0),
        repair_seconds=number(asked.repair_seconds, "--repair-seconds", "14400", REPAIR_SECONDS, 0.0),
        dollars_per_device_hour=dollars,
        watts_per_device=machine.watts_per_device,
    )


def advice_of(result: "SimulationResult") -> Advice | None:
    """Changes of the run's layout that help; None where the planner has no words for the run's layout."""
    layout = candidate_of(result.resolved.layout, result.resolved.model.num_layers)
    again = result.again
    if layout is None or again is None:
        return None
    request = request_of(result)

    def simulated(candidate: Candidate) -> tuple[float, int, bool] | None:
        keys = changed_keys(request, layout, candidate)
        try:
            changed = again(overrides_of(keys))
        except UserError:
            return None
        idle = changed.idle is not None and result.idle is None
        return None if idle else (changed.step_seconds, changed.memory_bytes, changed.fits)

    return advise(Pricer(request, SearchBudget(BUDGET)), layout, result.summary, simulated)


def request_of(result: "SimulationResult") -> Request:
    """The planner's request for the run: the same model, batch and prices, on as many devices as the layout uses."""
    prices, spec, config = result.summary.step.simulation.prices, result.resolved.spec, result.resolved.config
    layout = spec.layout
    held = max(result.summary.step.device_bytes)
    request = Request(
        model=spec.model,
        template=replace(prices, layout=layout),
        sequence_length=layout.sequence_length,
        global_sequences=config.batch.global_sequences,
        memory_bytes=result.summary.memory_limit,
        precision=config.precision,
        document_mask=spec.document_mask,
        transport=spec.transport,
        document_tokens=config.data.document_tokens,
        kept=kept_keys(layout),
        optimizer=config.optimizer,
        sequence_parallel=layout.sequence_parallel or layout.tp == 1,
    )
    likely = request.likely_bytes
    return replace(request, memory_bytes=likely) if held <= likely else request
