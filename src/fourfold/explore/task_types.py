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
class TaskDocument:
    """A task. `start` and `solution`: keys with their values as an address has them; `change`: keys that may be changed."""

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
    """All tasks."""

    tracks: list[TrackDocument]


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
    """A learner's setup, judged."""

    task: str
    won: bool
    criteria: list[CriterionResult]
    simulation: SimulationDocument
