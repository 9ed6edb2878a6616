"""Types of a schedule's timeline and of a rank's program by slots. A slot is an entry of a rank's compute order."""

from typing import Any

from typing_extensions import TypedDict

from fourfold.explore.prediction_types import exact

Event = tuple[float, float, str, int, int]
"""Start, end, operation (F, B, I, W), stage, microbatch."""
Wait = tuple[int, int, int]
"""A slot of the rank before which it idles; the rank and the slot that it waits for."""


@exact
class PipelineDocument(TypedDict):
    """`fourfold show --timeline --json`, and what the page shows with it.

    By rank: `events`, `waits`, `live_bytes` (activations while each slot runs), `idle_bytes` (those before it), `peak_bytes`,
    `busy`, `idle`, `inner_idle` and `peak_activations`. `critical`: (rank, slot) in order of time. `stages`: the segments of
    each. `setup`: the request that gives this run's other documents.
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
    events: list[list[Event]]
    transfer: float
    virtual_stages: int
    num_microbatches: int
    num_layers: int
    stated_layers: int
    stages: list[list[str]]
    waits: list[list[Wait]]
    critical: list[tuple[int, int]]
    live_bytes: list[list[int]]
    idle_bytes: list[list[int]]
    peak_bytes: list[int]
    device_memory_bytes: int | None
    setup: dict[str, Any]


@exact
class ProgramRow(TypedDict):
    """An instruction of a program. `stream`: where it runs; None on the compute stream."""

    index: int
    instruction: str
    operation: str
    stream: str | None
    sent_bytes: int
    live_bytes: int
    flops: int


@exact
class SlotsDocument(TypedDict):
    """`slots`: by instruction of the program, the slot whose computation it is; -1 for all others."""

    pp_rank: int
    program: list[ProgramRow]
    slots: list[int]


@exact
class TraceDocument(TypedDict):
    """The JSON trace event format."""

    displayTimeUnit: str
    traceEvents: list[dict[str, Any]]
