"""Goals of the board: a schedule to rebuild, or a step to make shorter than `auto`'s. The engine answers each."""

import json
import tomllib
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fourfold.explore.board.request import BETWEEN, Board, PassTimes, fill_rows, stage_times
from fourfold.program.schedule import Orders, StageTimes
from fourfold.program.schedule.execution import execute, peak_activations
from fourfold.program.schedule.record import loop_placement, v_placement
from fourfold.program.schedule.text import parse_token
from fourfold.results.record import record

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
"""Written by `python -m tools.board_results`."""
_ROUNDING = 1e-9


class Goal(BaseModel):
    """A goal on a board of `ranks` and `microbatches`; `placement`: one stage a rank, or two on a V. `schedule`: to rebuild. Else
    `durations` of the stages, `times` and `limit` of a step that is to be shorter than `auto`'s."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    title: str
    text: str
    ranks: int
    microbatches: int
    placement: Literal["line", "v"] = "line"
    schedule: str | None = None
    durations: list[float] | None = None
    times: PassTimes = PassTimes()
    limit: float | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.schedule is None) != (self.durations is not None and self.limit is not None):
            raise ValueError("allowed: schedule, or durations with limit")
        return self

    @cached_property
    def stage_ranks(self) -> tuple[int, ...]:
        """The rank of every stage."""
        return v_placement(self.ranks) if self.placement == "v" else loop_placement(self.ranks, 1)

    @cached_property
    def stage_times(self) -> StageTimes:
        """PassTimes of every stage."""
        return stage_times(self.times, self.durations, len(self.stage_ranks))

    @cached_property
    def orders(self) -> Orders:
        """All rows as the goal's schedule writes them; `auto` within the limit where it has none."""
        return fill_rows(self.schedule or "auto", self.stage_ranks, self.microbatches, self.stage_times, self.limit)

    def fits(self, board: Board) -> bool:
        """Whether the board has the goal's size."""
        return (board.stage_ranks, board.num_microbatches) == (self.stage_ranks, self.microbatches)

    def step(self, orders: Orders) -> float:
        """The length of a step under the goal's times."""
        return execute(orders, self.stage_ranks, self.stage_times).makespan

    def holds(self, orders: Orders) -> float:
        """The most activations that a rank holds."""
        return max(peak_activations(orders, self.stage_times))


@record
class KnownResult:
    """Steps under a goal's times: `auto`'s, the shortest that was ever found within the limit, and the length that none is below.
    `link`: the rows of the shortest."""

    auto: float
    best: float
    bound: float
    link: str


@record
class GoalDocument:
    """A goal, and how far the board is. `agrees`: by rank, whether its row is what the schedule writes; empty where the board has
    another size, or the goal is no schedule. `step`, `holds`: the board's step under the goal's times, and the most activations
    of a rank; None where it has another size or is not proved."""

    id: str
    title: str
    text: str
    ranks: int
    microbatches: int
    stages: list[int]
    schedule: str | None
    times: dict[str, float]
    durations: list[float] | None
    limit: float | None
    known: KnownResult | None
    fits: bool
    agrees: list[bool]
    step: float | None
    holds: float | None
    reached: bool


@lru_cache(maxsize=1)
def read_goals() -> tuple[Goal, ...]:
    """All goals, in order."""
    rows = tomllib.loads((FOLDER / "goals.toml").read_text(encoding="utf-8"))["goal"]
    return tuple(map(Goal.model_validate, rows))


@lru_cache(maxsize=1)
def known_results() -> dict[str, dict[str, Any]]:
    """By goal, the fields of `KnownResult`."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8")))


def orders_of(link: str) -> Orders:
    """The rows of a link that is known to be right."""
    return tuple(tuple(map(parse_token, row.split())) for row in link.split(BETWEEN))


def goal_rows(board: Board, is_proved: bool) -> list[dict[str, Any]]:
    """`GoalDocument` of every goal."""
    return [_row(goal, board, is_proved) for goal in read_goals()]


def _row(goal: Goal, board: Board, is_proved: bool) -> dict[str, Any]:
    known = known_results().get(goal.id) if goal.schedule is None else None
    fits = goal.fits(board)
    agrees = (
        [mine == wanted for mine, wanted in zip(board.orders, goal.orders, strict=True)]
        if fits and goal.schedule is not None
        else []
    )
    step, holds = (goal.step(board.orders), goal.holds(board.orders)) if fits and is_proved else (None, None)
    if goal.schedule is not None:
        reached = fits and is_proved and all(agrees)
    else:
        reached = _beats(goal, known, step, holds)
    return {
        **goal.model_dump(include={"id", "title", "text", "ranks", "microbatches", "schedule", "durations", "limit"}),
        "stages": list(goal.stage_ranks),
        "times": goal.times.model_dump(),
        "known": known,
        "fits": fits,
        "agrees": agrees,
        "step": step,
        "holds": holds,
        "reached": reached,
    }


def _beats(goal: Goal, known: dict[str, Any] | None, step: float | None, holds: float | None) -> bool:
    """Whether the step is shorter than `auto`'s within the limit."""
    if known is None or step is None or holds is None or goal.limit is None:
        return False
    return step < known["auto"] * (1 - _ROUNDING) and holds <= goal.limit * (1 + _ROUNDING)
