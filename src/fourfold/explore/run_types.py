"""Types of a run's documents: as it stands, as it was predicted, and all its metrics."""

from typing import Any

from typing_extensions import TypedDict

from fourfold.explore.prediction_types import MemoryCurve, exact


@exact
class CurveDocument(TypedDict):
    """A number by step, thinned so that the least and the most of every span stay."""

    steps: list[int]
    values: list[float]


@exact
class EventDocument(TypedDict):
    """A line of `events.jsonl`. `time`: Unix time; `text`: in words."""

    time: float | None
    event: str
    step: int | None
    text: str


@exact
class SaveAdviceDocument(TypedDict):
    """Seconds between failures, of a save, of a restart; intervals between saves; the goodput to expect of the best."""

    mean_seconds: float
    save_seconds: float
    restart_seconds: float
    young_seconds: float
    best_seconds: float
    expected_goodput: float


class GoodputOptional(TypedDict, total=False):
    advice: SaveAdviceDocument


@exact
class GoodputDocument(GoodputOptional):
    """Seconds of all launches by what they went to."""

    goodput: float
    total_seconds: float
    kept_seconds: float
    failures: int
    seconds: dict[str, float]


@exact
class RankPlace(TypedDict):
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


@exact
class RunDocument(TypedDict):
    """A run's folder as it stands. `now`: Unix time of the answer; `measured_time`: when ranks last wrote what they measured."""

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
    goodput: GoodputDocument
    ranks: list[RankPlace]
    num_ranks: int
    notes: list[str]


@exact
class MetricsDocument(TypedDict):
    """All steps of a run: a list for every column, null where a step has no such number."""

    steps: list[int]
    columns: dict[str, list[float | None]]


@exact
class StepTimes(TypedDict):
    """A step of a rank, by instruction, in seconds. `streams`: the instruction that starts it, begin, end, the stream's name."""

    step: int | None
    starts: list[float]
    ends: list[float]
    streams: list[tuple[int, float, float, str]]


@exact
class RankTimeline(TypedDict):
    """A step of a pipeline rank, as it ran on `rank` and as predicted; null where that is not known."""

    pp_rank: int
    rank: int | None
    instructions: list[str]
    measured: StepTimes | None
    predicted: StepTimes | None


@exact
class KindDocument(TypedDict):
    """A kind of instruction in a step."""

    kind: str
    count: int
    predicted_seconds: float | None
    measured_seconds: float


@exact
class RankDocument(TypedDict):
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


@exact
class ComparisonDocument(TypedDict):
    """`fourfold report --json`: a run's measured steps beside their prediction."""

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
