"""Types of a schedule's timeline and of a rank's program by slots. A slot is an entry of a rank's compute order."""

from typing import Any

from fourfold.explore.packed import Packed
from fourfold.results.record import record


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
