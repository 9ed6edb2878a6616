"""The timeline of a schedule and the program of a rank by slots. A slot is an entry of the compute order of a rank."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np

from fourfold.api.inputs import readable_config
from fourfold.api.programs import compiled_run
from fourfold.config import UserError
from fourfold.explore.machine import priced_setup
from fourfold.explore.packed import Kind, Packed, packed
from fourfold.explore.setup import Malformed, Setup
from fourfold.hardware import THIS, load_cluster, named_with
from fourfold.huggingface import resolve_model
from fourfold.launch.resolve import ResolvedRun, stated_vocab_size
from fourfold.program.capabilities import BY_LETTER
from fourfold.program.compiled import stage_flops
from fourfold.program.expand import expand_segments
from fourfold.program.instruction import Instruction
from fourfold.program.schedule import StageTimes, find_schedule
from fourfold.program.schedule.compute import SCHEDULED_OPS
from fourfold.program.slots import Slots
from fourfold.program.timeline import Timeline, timeline
from fourfold.program.view import rank_view
from fourfold.report.program_table import program_rows
from fourfold.report.timeline_text import timeline_figures
from fourfold.report.timeline_trace import timeline_trace
from fourfold.results.record import record
from fourfold.simulate.stage_times import stage_seconds


@record
class SlotColumns:
    """By slot, counted over all ranks: those of rank 0 come first. `number`: by rank, how many it has. `operation`: a place in the
    document's `operations`. `waits`: the slot that it waits for, where its rank idles before it; else -1. `critical`: 1 on the
    critical path.
    """

    number: list[int]
    start: Packed
    end: Packed
    operation: Packed
    stage: Packed
    microbatch: Packed
    waits: Packed
    critical: Packed


@record
class ActivationColumns:
    """Activations of the ranks. `live`: by slot, those while it runs, as a place in `bytes`; `idle`: those before it. `peak_bytes`:
    the most of each rank."""

    bytes: list[int]
    live: Packed
    idle: Packed
    peak_bytes: list[int]


@record
class PipelineDocument:
    """`fourfold show --timeline --json` with its events as columns, and what the page shows with it.

    By rank: `busy`, `idle`, `inner_idle` and `peak_activations`. `stages`: the segments of each. `setup`: the request that gives
    this run's other documents.
    """

    schedule: str
    stage_ranks: list[int]
    makespan: float
    bubble_fraction: float
    bubble_over_ideal: float
    zero_bubble_fraction: float
    imbalance_fraction: float
    busy: list[float]
    idle: list[float]
    inner_idle: list[float]
    peak_activations: list[float]
    transfer: float
    virtual_stages: int
    num_microbatches: int
    num_layers: int
    stated_layers: int
    stages: list[list[str]]
    operations: list[str]
    slots: SlotColumns
    activations: ActivationColumns
    device_memory_bytes: int | None
    setup: dict[str, Any]


@record
class ProgramRow:
    """An instruction of a program. `stream`: where it runs; None on the compute stream."""

    index: int
    instruction: str
    operation: str
    stream: str | None
    sent_bytes: int
    live_bytes: int
    flops: int


@record
class SlotsDocument:
    """`slots`: by instruction of the program, the slot whose computation it is; -1 for all others."""

    pp_rank: int
    program: list[ProgramRow]
    slots: list[int]


@record
class TraceDocument:
    """The JSON trace event format."""

    displayTimeUnit: str
    traceEvents: list[dict[str, Any]]


OWN = {"schedule": str, "ranks": int, "microbatches": int, "virtual_stages": int, "times": dict[str, float]}
"""Keys that the page adds to a setup. `times`: F, I and W of all stages of a rank together, so that schedules with several stages
compare with those that have one, and a transfer, in any unit; left out: seconds on the cluster."""
_SHAPE = ("schedule", "ranks", "microbatches", "virtual_stages")
TIMES = ("F", "I", "W", "transfer")
_MOST_SLOTS = 65_536
_MOST_RANKS = 128


@dataclass(frozen=True)
class Drawn:
    """A setup with the page's pipeline in it. `stated_layers`: the layers that the model has without it."""

    setup: Setup
    resolved: ResolvedRun
    stated_layers: int

    @cached_property
    def slots(self) -> Slots:
        """The slots of the schedule."""
        return Slots.of(self.resolved.compiled.orders(self.resolved.spec), self.resolved.layout.stage_ranks)

    @cached_property
    def sizes(self) -> StageTimes:
        """Bytes of activations of every stage, with its FLOPs as times."""
        return stage_flops(self.resolved.compiled.stages, self.resolved.compiled.footprints)

    @cached_property
    def activations(self) -> dict[str, Any]:
        """`ActivationColumns`: no time changes it."""
        levels = [row.astype(np.int64) for row in self.slots.activation_levels(self.sizes)]
        live, idle = [np.maximum(row[:-1], row[1:]) for row in levels], [row[:-1] for row in levels]
        sizes, found = np.unique(np.concatenate([*live, *idle]), return_inverse=True)
        kind: Kind = "uint16" if len(sizes) <= 1 << 16 else "int32"
        half = len(found) // 2
        return {
            "bytes": sizes.tolist(),
            "live": packed(found[:half], kind),
            "idle": packed(found[half:], kind),
            "peak_bytes": [int(row.max()) for row in levels],
        }


def drawn_run(setup: Setup, own: Mapping[str, Any]) -> Drawn:
    """The run with the page's pipeline: one rank a stage group, other degrees as they are stated, data parallelism 1 where it is
    not. A model with fewer layers than the pipeline has stages is drawn deeper. Raises `UserError`."""
    shape = {key: value for key, value in own.items() if key in _SHAPE}
    return _drawn_run(setup.model_dump_json(), json.dumps(shape))


@lru_cache(maxsize=4)
def _drawn_run(stated_setup: str, shape: str) -> Drawn:
    """Kept, since what a person drags is often a time."""
    setup, own = Setup.model_validate_json(stated_setup), json.loads(shape)
    ranks, microbatches = own.get("ranks", 4), own.get("microbatches", 8)
    schedule = find_schedule(own.get("schedule", "1f1b"))
    stages = max(schedule.min_virtual_stages, own.get("virtual_stages", 1))
    stages = min(stages, schedule.max_virtual_stages or stages)
    if not 1 <= ranks <= _MOST_RANKS or microbatches < 1 or ranks * microbatches * stages > _MOST_SLOTS:
        raise UserError(
            f"{ranks} ranks x {stages} stages x {microbatches} microbatches: allowed: 1 to {_MOST_RANKS} ranks, and "
            f"{_MOST_SLOTS:,} slots in all; what works: 64 ranks x 1 stage x 256 microbatches"
        )
    stated = {key: value for key, value in setup.stated.items() if key != "layout.segments_per_stage"}
    config = readable_config(setup.run_input, stated, trust=False)
    model = resolve_model(config.model, stated_vocab_size(config.model, config.data))
    layout = config.layout
    shards = stated.get("layout.dp_shard") or max(1, layout.ep * layout.etp // (layout.cp * layout.tp))
    stated |= {
        "layout.pp": ranks,
        "layout.schedule": schedule.name,
        "layout.virtual_stages": stages,
        "layout.dp_shard": shards,
        "batch.global_sequences": microbatches * layout.microbatch_sequences * layout.dp_replicate * shards,
        "model.num_layers": max(model.num_layers, ranks * stages),
    }
    if layout.segments_per_stage is not None:  # a preset's, for its own stages
        segments, parts = sum(layout.segments_per_stage), ranks * stages
        segments += max(0, parts - model.num_layers)
        stated["layout.segments_per_stage"] = [(segments + part) // parts for part in range(parts)]
    cluster = setup.cluster or (config.cluster.preset if config.cluster.preset != THIS else None)
    if cluster is not None:
        cluster = named_with(cluster, ranks * layout.dp_replicate * shards * layout.cp * layout.tp)
    complete = setup.model_copy(update={"overrides": stated, "cluster": cluster})
    resolved = compiled_run(complete.run_input, stated, cluster=cluster)
    return Drawn(complete, resolved, model.num_layers)


def pipeline_document(setup: Setup, own: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `fourfold show --timeline --json`, for times that are set or those of the cluster. With it: what every
    rank waits for, the critical path, and the activations that are live in every slot. Raises `UserError`."""
    drawn = drawn_run(setup, own)
    layout, slots, cluster = drawn.resolved.layout, drawn.slots, drawn.setup.cluster
    found = timed(drawn, own)
    starts, ends = (np.fromiter(chain.from_iterable(each), float) for each in (found.run.starts, found.run.ends))
    waits = slots.waits(starts, ends)
    critical = np.zeros(len(ends))
    critical[slots.critical(ends, waits)] = 1
    return {
        **timeline_figures(found, layout.schedule),
        "transfer": found.transfer_time,
        "virtual_stages": layout.virtual_stages,
        "num_microbatches": layout.num_microbatches,
        "num_layers": drawn.resolved.model.num_layers,
        "stated_layers": drawn.stated_layers,
        "stages": [[segment.name for segment in stage] for stage in drawn.resolved.compiled.stages.stages],
        "operations": [op.value for op in SCHEDULED_OPS],
        "slots": {
            "number": np.diff(slots.first).tolist(),
            "start": packed(starts, "float64"),
            "end": packed(ends, "float64"),
            "operation": packed(slots.operation, "uint8"),
            "stage": packed(slots.stage, "uint16"),
            "microbatch": packed(slots.microbatch, "uint16"),
            "waits": packed(waits, "int32"),
            "critical": packed(critical, "uint8"),
        },
        "activations": drawn.activations,
        "device_memory_bytes": None if cluster is None else load_cluster(cluster).device.memory_bytes,
        "setup": drawn.setup.model_dump(include={"run", "overrides", "cluster"}, exclude_none=True),
    }


def timed(drawn: Drawn, own: Mapping[str, Any]) -> Timeline:
    """The timeline of a run, for times that are set or those of the cluster."""
    return timeline(drawn.slots.orders, drawn.slots.stage_ranks, _times(drawn, own, drawn.sizes))


def trace_document(setup: Setup, own: Mapping[str, Any]) -> dict[str, Any]:
    """The timeline as a trace for Perfetto. Raises `UserError`."""
    drawn = drawn_run(setup, own)
    return timeline_trace(timed(drawn, own), drawn.resolved.layout.schedule)


def slots_document(setup: Setup, own: Mapping[str, Any]) -> dict[str, Any]:
    """The program of a pipeline rank, and where in it the instructions of each slot stand. Raises `UserError`."""
    drawn = drawn_run(setup, own)
    resolved, rank = drawn.resolved, own.get("pp_rank", 0)
    if not 0 <= rank < resolved.layout.pp:
        raise Malformed(f"pp_rank = {rank}: allowed: 0 to {resolved.layout.pp - 1}")
    view = rank_view(resolved.spec, rank)
    slots = expand_segments(resolved.compiled.orders(resolved.spec)[rank], view)
    slot_of = {pattern.of(m).short: index for index, steps in enumerate(slots) for pattern, m in steps}
    program = resolved.program("train", rank)
    found = [slot_of.get(step.short, slot_of.get(_pass_of(step), -1)) for step in program.instructions]
    return {"pp_rank": rank, "program": program_rows(program), "slots": found}


def _pass_of(step: Instruction) -> str:
    """The pass of which an instruction is a part: an all-to-all of experts, or what runs behind it."""
    full = step.op.info.part_of
    return "" if full is None else step._replace(op=BY_LETTER[full]).short


def _times(drawn: Drawn, own: Mapping[str, Any], sizes: StageTimes) -> StageTimes:
    set_by_hand = own.get("times")
    if set_by_hand is None:
        resolved, _, prices = priced_setup(drawn.setup)
        return stage_seconds(resolved.spec, prices, resolved.compiled)
    if set(set_by_hand) != set(TIMES) or not all(
        0 <= each <= 1e9 and math.isfinite(each) for each in set_by_hand.values()
    ):
        raise Malformed(f"times = {set_by_hand}: allowed: {', '.join(TIMES)}, each from 0 to 1e9")
    part = drawn.resolved.layout.virtual_stages
    forward, inputs, weights, transfer = (set_by_hand[name] for name in TIMES)
    return StageTimes.uniform(sizes.num_stages, forward / part, inputs / part, weights / part, transfer)
