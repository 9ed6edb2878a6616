"""Types of a run's documents: as it stands, as it was predicted, and all its metrics."""

from typing import Any, ClassVar

from fourfold.results.prediction import MemoryCurve
from fourfold.results.record import ABSENT, record


@record
class CurveDocument:
    """A number by step, thinned so that the least and the most of every span stay. `num_values`: those that the run has of these
    steps."""

    steps: list[int]
    values: list[float]
    num_values: int


@record
class EventDocument:
    """A line of `events.jsonl`. `time`: Unix time; `text`: in words."""

    time: float | None
    event: str
    step: int | None
    text: str


@record
class SaveAdviceDocument:
    """Seconds between failures, of a save, of a restart; intervals between saves; the goodput to expect of the best."""

    mean_seconds: float
    save_seconds: float
    restart_seconds: float
    young_seconds: float
    best_seconds: float
    expected_goodput: float


@record
class GoodputDocument:
    """Seconds of all launches by what they went to."""

    FIRST: ClassVar = ("goodput", "total_seconds", "failures")
    LAST: ClassVar = ("advice",)
    advice: SaveAdviceDocument = ABSENT
    goodput: float
    total_seconds: float
    kept_seconds: float
    failures: int
    seconds: dict[str, float]


@record
class RankPlace:
    """Where a rank was last seen. `state`: its process's letter in /proc, empty where it is gone; `waits_for`: rank and group."""

    rank: int
    state: str
    activity: str
    step: int
    index: int
    num_instructions: int
    instruction: str
    seconds: float | None
    waits_for: list[tuple[int, str]]


@record
class RunDocument:
    """A run's folder as it stands. `now`: Unix time of the answer; `measured_time`: when ranks last wrote what they measured.
    `history`: what the run went through, of `num_history` events the first and the newest. `num_samples`: steps that measured every
    layer."""

    name: str
    folder: str
    model: str | None
    layout: str | None
    num_steps: int
    step: int
    alive: bool
    state: str
    seconds_left: float | None
    now: float
    measured_time: float | None
    latest: dict[str, float]
    curves: dict[str, CurveDocument]
    events: list[EventDocument]
    num_events: int
    history: list[EventDocument]
    num_history: int
    goodput: GoodputDocument
    ranks: list[RankPlace]
    num_ranks: int
    notes: list[str]
    num_samples: int


@record
class MetricsDocument:
    """Steps of a run: a list for every column, null where a step has no such number. A long run's are those where a column has the
    least or the most of a span; `num_steps`: how many it has."""

    steps: list[int]
    columns: dict[str, list[float | None]]
    num_steps: int


@record
class LayersDocument:
    """Numbers of every segment at the sampled steps. `values`: by quantity, for each segment a number a bin of steps, null where it
    has none; `steps`: the last one of each bin; `num_samples`: sampled steps, of which a bin holds the most, or the least."""

    segments: list[str]
    steps: list[int]
    num_samples: int
    values: dict[str, list[list[float | None]]]


@record
class StepTimes:
    """A step of a rank, by instruction, in seconds. `streams`: the instruction that starts it, begin, end, the stream's name."""

    step: int | None
    starts: list[float]
    ends: list[float]
    streams: list[tuple[int, float, float, str]]


@record
class RankTimeline:
    """A step of a pipeline rank, as it ran on `rank` and as predicted; null where that is not known."""

    FIRST: ClassVar = ("pp_rank", "instructions")
    pp_rank: int
    rank: int | None
    instructions: list[str]
    measured: StepTimes | None
    predicted: StepTimes | None


@record
class KindDocument:
    """A kind of instruction in a step."""

    kind: str
    count: int
    predicted_seconds: float | None
    measured_seconds: float


@record
class RankDocument:
    """A rank's measurements beside its prediction."""

    rank: int
    pp_rank: int
    predicted_step_seconds: float | None
    measured_step_seconds: float
    timed_steps: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    predicted_sent_bytes: dict[str, int]
    measured_sent_bytes: dict[str, int]
    sent_bytes_equal: bool
    kinds: list[KindDocument]


@record
class ComparisonDocument:
    """`fourfold report --json`: a run's measured steps beside their prediction."""

    FIRST: ClassVar = ("timelines", "memory_over_time")

    cluster: str | None
    predicted_step_seconds: float | None
    measured_step_seconds: float
    error: float | None
    why_not_predicted: str | None
    notes: list[str]
    differences: list[dict[str, Any]]
    kinds: list[KindDocument]
    ranks: list[RankDocument]
    timelines: list[RankTimeline]
    memory_over_time: list[MemoryCurve]
