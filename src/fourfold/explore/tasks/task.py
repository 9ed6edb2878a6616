"""Tasks as data: a TOML file for each track, read strictly."""

import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fourfold.config import UserError
from fourfold.config.errors import did_you_mean, shortened
from fourfold.explore.setup import body_of, read_setup
from fourfold.explore.tasks.query import parse_query

TRACKS = ("memory", "pipeline", "network", "machine", "reading")
FOLDER = Path(__file__).parent
Text = Annotated[str, Field(min_length=1)]
Keys = Annotated[dict[str, Any], Field(min_length=1)]
LONGEST_TEXT = 20_000
"""Characters of a person's own task."""
_NUMBER = re.compile(r"\{(\w+) ([^}]+)\}")
SECTIONS = ("model", "batch", "layout", "precision", "optimizer", "data")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Criterion(Strict):
    """One thing that a solution must reach: a query on the document of `fourfold simulate --json`, and the same in words."""

    query: Text
    text: Text

    @field_validator("query")
    @classmethod
    def _is_a_query(cls, text: str) -> str:
        parse_query(text)
        return text


class Guess(Strict):
    """A number to predict: a question, and the path at which `fourfold simulate --json` has the answer. `of`: the setup that is
    asked about. `least`, `most`: ends of the scale on which the guess is set, which is logarithmic."""

    question: Text
    path: Text
    of: Literal["start", "solution"] = "start"
    least: Annotated[float, Field(gt=0)]
    most: Annotated[float, Field(gt=0)]

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, path: str) -> str:
        parse_query(f"{path} > 0")
        return path

    @model_validator(mode="after")
    def _is_a_scale(self) -> "Guess":
        if not self.least * 2 <= self.most:
            raise ValueError(f"most = {self.most} beside least = {self.least}; allowed: at least twice as much")
        return self


class Task(Strict):
    """One task. Keys are those of the run file, dotted, and options of `fourfold simulate`.

    `briefing`, `hints` and `story` are text with terms of the glossary in brackets, `[ZeRO]` or `[shared](#zero)`; a blank line
    begins a paragraph. `start`: the setup that loses. `change`: keys that the learner may change. `solution`, `wrong`: values of
    those keys that win, and that do not. `moved`: keys that must differ from the start, those of `solution` if left out: another
    way to the same numbers is not what the task is about. `figure`: the picture that it is about, before and after; `why`: what
    happened there, with numbers of the start and of the learner's setup, `{before PATH}` and `{after PATH}`, and `mark` the part of
    the picture that it speaks of: a kind of memory, axes, `bubble`."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    title: Text
    level: Annotated[int, Field(ge=1, le=3)]
    aim: Text
    briefing: Text
    start: Keys
    change: Annotated[list[str], Field(min_length=1)]
    criteria: Annotated[list[Criterion], Field(min_length=1)]
    hints: Annotated[list[Text], Field(min_length=2, max_length=3)]
    story: Text
    source: Text
    figure: Literal["memory", "time", "network", "pipeline"]
    mark: Text | None = None
    why: Text
    guess: Guess | None = None
    solution: Keys
    moved: Annotated[list[str], Field(min_length=1)] | None = None
    wrong: Annotated[list[Keys], Field(min_length=1)]

    @property
    def must_move(self) -> list[str]:
        """`moved`, or its default."""
        return list(self.solution) if self.moved is None else self.moved

    @field_validator("start", "solution", mode="before")
    @classmethod
    def _dotted(cls, table: Any) -> Any:
        return flat(table) if isinstance(table, dict) else table

    @field_validator("wrong", mode="before")
    @classmethod
    def _all_dotted(cls, tables: Any) -> Any:
        return (
            [flat(each) if isinstance(each, dict) else each for each in tables] if isinstance(tables, list) else tables
        )

    @field_validator("why")
    @classmethod
    def _numbers_have_paths(cls, text: str) -> str:
        for path, which in with_numbers(text):
            if which is None:
                continue
            if which not in ("before", "after"):
                raise ValueError(f"{{{which} {path}}}: no such setup; what works: {{before {path}}}, {{after {path}}}")
            parse_query(f"{path} > 0")
        return text

    @property
    def number_paths(self) -> list[str]:
        """The paths of the numbers in `why`."""
        return list(dict.fromkeys(path for path, which in with_numbers(self.why) if which is not None))

    @model_validator(mode="after")
    def _consistent(self) -> "Task":
        for name, keys in [("solution", self.solution), *(("wrong", each) for each in self.wrong)]:
            for key in keys.keys() - set(self.change):
                raise ValueError(f"{name} states {key}; allowed: keys of change, {', '.join(self.change)}")
        for key in set(self.moved or ()) - self.solution.keys():
            raise ValueError(f"moved states {key}; allowed: keys of solution, {', '.join(self.solution)}")
        for keys in (self.start, self.solution, *self.wrong):
            try:
                read_setup(body_of(keys))
            except UserError as error:
                raise ValueError(str(error)) from None
        return self


class Track(Strict):
    """Tasks of one subject, from easy to hard."""

    title: Text
    lead: Text
    tasks: Annotated[list[Task], Field(min_length=1)]


def with_numbers(text: str) -> list[tuple[str, str | None]]:
    """A text in parts: words with None, and the path of each number with its setup: `{after memory_bytes}` is
    `("memory_bytes", "after")`."""
    line, end = " ".join(text.split()), 0
    parts: list[tuple[str, str | None]] = []
    for match in _NUMBER.finditer(line):
        parts += [(line[end : match.start()], None), (match[2], match[1])]
        end = match.end()
    return [(part, which) for part, which in (*parts, (line[end:], None)) if part]


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """`{"layout": {"tp": 8}, "cluster": "dgx-h100"}` -> `{"layout.tp": 8, "cluster": "dgx-h100"}`."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        inside = value.items() if name in SECTIONS and isinstance(value, dict) else None
        found |= {f"{name}.{key}": each for key, each in inside} if inside is not None else {name: value}
    return found


def read_track(path: Path) -> Track:
    """Raises `UserError` that names the file, the task and the key."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return Track.model_validate(document)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{path}: {_place(document, first['loc'])} = {shortened(first['input'])}: {first['msg']}"
        ) from None


def read_own_task(text: str) -> Task:
    """A person's own task, from the TOML of one: the keys of a `[[tasks]]` table of ours, with or without that line. Its id begins
    with `own-`. Raises `UserError` that names the key."""
    if len(text) > LONGEST_TEXT:
        raise UserError(f"the task has {len(text):,} characters; allowed: at most {LONGEST_TEXT:,}")
    try:
        table = tomllib.loads(text)
        rows = table.get("tasks", [table])
        if not isinstance(rows, list) or len(rows) != 1 or not isinstance(rows[0], dict):
            raise UserError("tasks: the text holds no task or several; allowed: one [[tasks]] table, or its keys alone")
        found = Task.model_validate(rows[0])
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the task is no TOML: {error}; what works: the text of a task of ours, changed") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "task"
        raise UserError(f"{key} = {shortened(first['input'])}: {first['msg']}") from None
    return found.model_copy(update={"id": f"own-{found.id}"})


def first_task_text() -> str:
    """The TOML of the first task of ours, to begin one's own from."""
    text = (FOLDER / f"{TRACKS[0]}.toml").read_text(encoding="utf-8")
    return text.split("[[tasks]]\n")[1].strip() + "\n"


def _place(document: dict[str, Any], where: tuple[int | str, ...]) -> str:
    """`tasks.2.hints.0` with the task's id in place of its number."""
    parts = list(map(str, where))
    if len(where) > 1 and where[0] == "tasks":
        parts[1] = str(document["tasks"][where[1]].get("id", where[1]))
    return ".".join(parts)


@lru_cache(maxsize=1)
def read_tracks() -> dict[str, Track]:
    """All tracks by name, in their order. Raises `UserError`, also for an id that two tasks have."""
    found = {name: read_track(FOLDER / f"{name}.toml") for name in TRACKS}
    ids = [task.id for track in found.values() for task in track.tasks]
    for each in ids:
        if ids.count(each) > 1:
            raise UserError(f"{FOLDER}: two tasks have the id {each}; what works: another word for one of them")
    return found


def task_named(name: str) -> Task:
    """Raises `UserError` where there is none."""
    tasks = {task.id: task for track in read_tracks().values() for task in track.tasks}
    if name not in tasks:
        near = did_you_mean(name, tasks)
        raise UserError(f"task = {shortened(name)}: there is none; {near}the first one: {next(iter(tasks))}")
    return tasks[name]
