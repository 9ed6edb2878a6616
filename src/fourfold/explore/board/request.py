"""Requests of the page's board: a compute order as its link, its file or a schedule's name states it, and times."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.explore.setup import validated
from fourfold.program.schedule import Orders, Schedule, StageTimes, auto_orders, order_text, parse_orders
from fourfold.program.schedule.auto import AUTO
from fourfold.program.schedule.built_in import with_placement
from fourfold.program.schedule.check import token
from fourfold.program.schedule.record import loop_placement
from fourfold.program.schedule.text import parse_token

RANKS, MICROBATCHES, STAGES_A_RANK = (2, 8), (1, 16), (1, 2)
"""The least and the most that a board has."""
BETWEEN = ":"
"""Between two rows of a link: no entry has it, and an address need not escape it."""
FACTORS = (0.0, 1000.0)
_MOST_FILE = 20_000
Factor = Annotated[float, Field(ge=FACTORS[0], le=FACTORS[1])]


class PassTimes(BaseModel):
    """PassTimes of a stage in any unit: forward, both halves of backward; of a transfer between ranks."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    F: Factor = 1.0
    I: Factor = 1.0  # noqa: E741
    W: Factor = 1.0
    transfer: Factor = 0.0


class BoardRequest(BaseModel):
    """`rows`: entries of every rank, as a link has them. In place of them: `file`, the text of a schedule file, which states the
    size too; or `fill`, the name of a schedule that writes all rows. `stages`: the rank of every stage; left out: one a rank.
    `durations`: how many times longer each stage takes than `times` say. `limit`: activations that a rank may hold, for `fill`
    with `auto`."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    ranks: Annotated[int, Field(ge=RANKS[0], le=RANKS[1])] = 4
    microbatches: Annotated[int, Field(ge=MICROBATCHES[0], le=MICROBATCHES[1])] = 4
    stages: Annotated[list[Annotated[int, Field(ge=0, lt=RANKS[1])]], Field(max_length=16)] | None = None
    rows: Annotated[str, Field(max_length=_MOST_FILE)] = ""
    file: Annotated[str, Field(max_length=_MOST_FILE)] | None = None
    fill: Annotated[str, Field(max_length=40)] | None = None
    times: PassTimes = PassTimes()
    durations: Annotated[list[Factor], Field(max_length=16)] | None = None
    limit: Factor | None = None


@dataclass(frozen=True)
class Board:
    """A compute order that may lack entries, and may be wrong. `stage_ranks`: the rank of every stage."""

    stage_ranks: tuple[int, ...]
    num_microbatches: int
    orders: Orders
    times: StageTimes

    @property
    def num_ranks(self) -> int:
        return len(self.orders)

    @property
    def virtual_stages(self) -> int:
        """Stages of a rank."""
        return len(self.stage_ranks) // self.num_ranks

    @property
    def text(self) -> str:
        """The schedule file: `layout.schedule = "file:PATH"` reads it."""
        return order_text(self.orders, self.stage_ranks)

    @property
    def rows(self) -> str:
        """The rows as a link has them."""
        return BETWEEN.join(" ".join(map(token, order)) for order in self.orders)


def read_board(body: Mapping[str, Any]) -> Board:
    """Raises `Malformed` for a request that the page never makes, `UserError` for a text that is no board."""
    works = '{"ranks": 2, "microbatches": 1, "rows": "F0.0 B0.0:F1.0 B1.0"}'
    asked = validated(BoardRequest, body, f"what works: {works}")
    if asked.file is not None:
        return _from_file(asked, asked.file)
    stage_ranks = _stage_ranks(asked.stages, asked.ranks)
    times = stage_times(asked.times, asked.durations, len(stage_ranks))
    if asked.fill is not None:
        orders = fill_rows(asked.fill, stage_ranks, asked.microbatches, times, asked.limit)
    else:
        orders = _rows(asked.rows, asked.ranks)
    return Board(stage_ranks, asked.microbatches, orders, times)


def stage_times(times: PassTimes, durations: list[float] | None, num_stages: int) -> StageTimes:
    """PassTimes of every stage. Raises `UserError` where `durations` has another number of stages."""
    longer = durations if durations is not None else [1.0] * num_stages
    if len(longer) != num_stages:
        raise UserError(
            f"durations = {longer}: one for each of the {num_stages} stages; what works: {[1] * num_stages}"
        )
    forward, inputs, weights = (tuple(each * by for by in longer) for each in (times.F, times.I, times.W))
    return StageTimes(forward, inputs, weights, times.transfer)


def fill_rows(
    name: str, stage_ranks: tuple[int, ...], num_microbatches: int, times: StageTimes, limit: float | None = None
) -> Orders:
    """All rows as a built-in schedule, or `auto` within a limit, writes them. Raises `UserError` for one that does not put the
    stages on these ranks."""
    if name == AUTO.name:
        return auto_orders(stage_ranks, num_microbatches, times, limit)
    num_ranks = max(stage_ranks) + 1
    known = known_fills(stage_ranks)
    found = known.get(name)
    if found is None:
        placed = " ".join(map(str, stage_ranks))
        raise UserError(
            f"fill = {shortened(name)}: writes no order for stages on ranks {placed}; allowed: {', '.join([*known, AUTO.name])}"
        )
    size = (num_ranks, len(stage_ranks) // num_ranks, num_microbatches)
    if found.check_size is not None:
        found.check_size(*size)
    return found.orders(*size, None, None)


def known_fills(stage_ranks: tuple[int, ...]) -> dict[str, Schedule]:
    """The built-in schedules that put the stages on these ranks, by name."""
    return {schedule.name: schedule for schedule in with_placement(stage_ranks)}


def _stage_ranks(stated: list[int] | None, num_ranks: int) -> tuple[int, ...]:
    """Raises `UserError` unless every rank holds as many stages."""
    stage_ranks = tuple(stated) if stated is not None else loop_placement(num_ranks, 1)
    held = Counter(stage_ranks)
    least, most = STAGES_A_RANK
    if set(held) != set(range(num_ranks)) or len(set(held.values())) > 1 or not least <= held[0] <= most:
        works = " ".join(map(str, loop_placement(num_ranks, 1)))
        raise UserError(
            f"stages {' '.join(map(str, stage_ranks))}: allowed: each of the {num_ranks} ranks holds {least}, or each {most}; "
            f"what works: stages {works}"
        )
    return stage_ranks


def _rows(text: str, num_ranks: int) -> Orders:
    rows = text.split(BETWEEN) if text else [""] * num_ranks
    if len(rows) != num_ranks:
        raise UserError(
            f"rows: {len(rows)} rows, but the board has {num_ranks} ranks; what works: entries of each rank, a {BETWEEN!r} between "
            f"ranks, as F0.0 B0.0{BETWEEN}F1.0 B1.0"
        )
    found = []
    for rank, row in enumerate(rows):
        entries = []
        for index, each in enumerate(row.split()):
            try:
                entries.append(parse_token(each))
            except ValueError as error:
                raise UserError(f"rows: rank {rank}, entry {index}: {error}") from None
        found.append(tuple(entries))
    return tuple(found)


def _from_file(asked: BoardRequest, text: str) -> Board:
    """The board of a schedule file, as large as the file says. Raises `UserError`."""
    lines = [line.split("#", 1)[0].split() for line in text.lstrip("\ufeff").splitlines()]
    num_ranks = sum(line[0].startswith("rank") for line in lines if line)
    if not RANKS[0] <= num_ranks <= RANKS[1]:
        raise UserError(
            f"the file has {num_ranks} lines of ranks; allowed here: {RANKS[0]} to {RANKS[1]}; what works: a line "
            "'rank R: F0.0 ...' for every pipeline rank"
        )
    orders, placement = parse_orders(text.lstrip("\ufeff"), num_ranks, "file")
    entries = [entry for order in orders for entry in order]
    num_stages = 1 + max((entry.stage for entry in entries), default=num_ranks - 1)
    if placement is None:
        placement = loop_placement(num_ranks, -(-num_stages // num_ranks))
    stage_ranks = _stage_ranks(list(placement), num_ranks)
    microbatches = 1 + max((entry.microbatch for entry in entries), default=asked.microbatches - 1)
    if microbatches > MICROBATCHES[1]:
        raise UserError(f"the file has {microbatches} microbatches; allowed here: {MICROBATCHES[1]} at most")
    durations = asked.durations if asked.durations and len(asked.durations) == len(stage_ranks) else None
    return Board(stage_ranks, microbatches, orders, stage_times(asked.times, durations, len(stage_ranks)))
