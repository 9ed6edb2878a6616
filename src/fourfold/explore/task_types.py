"""Types of the tasks, of a judged setup, and of the glossary."""

from fourfold.results.prediction import SimulationDocument
from fourfold.results.record import record


@record
class PieceDocument:
    """A part of a paragraph. `term`: the slug of the glossary's entry that it stands for; `code`: as it is typed."""

    text: str
    term: str | None
    code: bool


@record
class TermDocument:
    """An entry of the glossary. `ours`: a word of this project."""

    slug: str
    name: str
    definition: list[PieceDocument]
    formula: str | None
    source: str | None
    ours: bool


@record
class CriterionDocument:
    """A query on `fourfold simulate --json`, and the same in words."""

    query: str
    text: str


@record
class GuessDocument:
    """A number to predict: `of` "start" or "solution", on a logarithmic scale from `least` to `most`."""

    question: str
    path: str
    of: str
    least: float
    most: float


@record
class WhyDocument:
    """A part of an explanation: text, or the path of a number and whose it is, that of `setup` "before" or "after"."""

    text: str
    setup: str | None


@record
class TaskDocument:
    """A task. `start` and `solution`: keys with their values as an address has them; `change`: keys that may be changed,
    `must_move`: those of them that have to. `figure`: memory, time, network or pipeline; `mark`: the part of it that `why` speaks
    of."""

    id: str
    title: str
    level: int
    aim: str
    briefing: list[list[PieceDocument]]
    start: dict[str, str]
    change: list[str]
    criteria: list[CriterionDocument]
    hints: list[list[PieceDocument]]
    story: list[list[PieceDocument]]
    source: str
    figure: str
    mark: str | None
    why: list[WhyDocument]
    guess: GuessDocument | None
    must_move: list[str]
    solution: dict[str, str]


@record
class TrackDocument:
    """Tasks of one subject, from easy to hard."""

    name: str
    title: str
    lead: str
    tasks: list[TaskDocument]


@record
class TasksDocument:
    """All tasks; `example`: the TOML of one, to write one's own from."""

    tracks: list[TrackDocument]
    example: str


@record
class CriterionResult:
    """A criterion of a judged setup. `got`: None where the document has no such value."""

    query: str
    text: str
    path: str
    comparison: str
    wanted: bool | float | str
    got: bool | float | str | None
    met: bool


@record
class JudgementDocument:
    """A learner's setup, judged. `moved`: by key that the task is about, whether it differs from the start; `guess`: the number
    that the task lets a person guess, of this setup; `numbers`: those of its explanation, by path."""

    task: str
    won: bool
    criteria: list[CriterionResult]
    moved: dict[str, bool]
    guess: float | None
    numbers: dict[str, float | None]
    simulation: SimulationDocument
