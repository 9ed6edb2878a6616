"""A person's own schedule: a text file (`file:PATH`), or a Python function (`python:MODULE:FUNCTION`)."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fourfold.config import UserError
from fourfold.config.errors import attribute_of, error_text
from fourfold.config.whole_file import bounded
from fourfold.program.schedule.check import check_orders
from fourfold.program.schedule.compute import Compute, Orders
from fourfold.program.schedule.record import MemoryLimit, Schedule, loop_placement
from fourfold.program.schedule.text import parse_orders, parse_token
from fourfold.program.schedule.times import StageTimes

FILE, PYTHON = "file:", "python:"
_MOST_BYTES = 8 * 2**20


def is_user_schedule(name: str) -> bool:
    """Whether the name is `file:...` or `python:...`."""
    return name.startswith((FILE, PYTHON))


def user_schedule(name: str) -> Schedule:
    """The record of a person's own schedule. Nothing is read before orders or placement are asked for."""

    def orders(
        num_ranks: int, virtual_stages: int, num_microbatches: int, times: StageTimes | None, limit: MemoryLimit
    ) -> Orders:
        return _proved_orders(name, num_ranks, virtual_stages, num_microbatches)

    return Schedule(
        name=name,
        summary="A person's own.",
        paper="",
        orders=orders,
        placement=lambda num_ranks, virtual_stages: _stage_ranks(name, num_ranks, virtual_stages),
        check_size=lambda *size: _proved_orders(name, *size),
        steady_rounds=None,
    )


def _stage_ranks(schedule: str, num_ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """The placement that the file or function states; stage s on rank s mod P where it states none."""
    if schedule.startswith(FILE):
        _, stated = parse_orders(_read(schedule), num_ranks, schedule.removeprefix(FILE))
    else:
        stated = _function_placement(schedule, _function(schedule), num_ranks, virtual_stages)
    if stated is None:
        return loop_placement(num_ranks, virtual_stages)
    _check_placement(stated, num_ranks, virtual_stages, f"layout.schedule = {schedule!r}")
    return stated


def _check_placement(stage_ranks: Sequence[int], num_ranks: int, virtual_stages: int, source: str) -> None:
    """Every rank holds `virtual_stages` stages."""
    works = " ".join(map(str, loop_placement(num_ranks, virtual_stages)))
    if len(stage_ranks) != num_ranks * virtual_stages:
        raise UserError(
            f"{source}: gives the ranks of {len(stage_ranks)} stages, but layout.pp x layout.virtual_stages = {num_ranks} x "
            f"{virtual_stages} = {num_ranks * virtual_stages}; what works: stages {works}"
        )
    for rank in range(num_ranks):
        held = sum(r == rank for r in stage_ranks)
        if held != virtual_stages:
            raise UserError(
                f"{source}: rank {rank} holds {held} stages; allowed: layout.virtual_stages = {virtual_stages}; "
                f"what works: stages {works}"
            )


def _proved_orders(schedule: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Orders:
    """The order of every rank, proved complete and executable. Raises `UserError`."""
    stage_ranks = _stage_ranks(schedule, num_ranks, virtual_stages)
    if schedule.startswith(FILE):
        orders, _ = parse_orders(_read(schedule), num_ranks, schedule.removeprefix(FILE))
    else:
        orders = _call(schedule, num_ranks, virtual_stages, num_microbatches)
    try:
        check_orders(orders, stage_ranks, len(stage_ranks), num_microbatches)
    except UserError as error:
        raise UserError(f"layout.schedule = {schedule!r}: {error}") from None
    return orders


def _read(schedule: str) -> str:
    path = Path(schedule.removeprefix(FILE))
    if not path.is_file():
        raise UserError(
            f"layout.schedule = {schedule!r}: there is no file {path}; allowed: file:PATH of a text file with a line "
            f"'rank R: F0.0 ...' for every pipeline rank; a value that works: '1f1b'"
        )
    try:
        return bounded(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(
            f"layout.schedule = {schedule!r}: cannot be read: {error}; what works: a UTF-8 text file"
        ) from None


def _function(schedule: str) -> Callable[..., Any]:
    module_name, _, name = schedule.removeprefix(PYTHON).partition(":")
    if not module_name or not name:
        raise UserError(
            f"layout.schedule = {schedule!r}: allowed: 'python:MODULE:FUNCTION', as 'python:my_package.schedules:mine'"
        )
    function = attribute_of(f"layout.schedule = {schedule!r}", module_name, name)
    if not callable(function):
        raise UserError(f"layout.schedule = {schedule!r}: {module_name} has no function {name}")
    return function


def _function_placement(
    schedule: str, function: Callable[..., Any], num_ranks: int, virtual_stages: int
) -> tuple[int, ...] | None:
    """The function's attribute `stage_ranks`: one rank a stage, or a function of (num_ranks, virtual_stages) that gives them."""
    stated = getattr(function, "stage_ranks", None)
    if callable(stated):
        try:
            stated = stated(num_ranks, virtual_stages)
        except (Exception, SystemExit) as error:
            raise _failed(schedule, f"stage_ranks({num_ranks}, {virtual_stages})", error) from error
    if stated is None:
        return None
    if not isinstance(stated, Sequence) or not all(isinstance(rank, int) for rank in stated):
        raise UserError(
            f"layout.schedule = {schedule!r}: stage_ranks gives {stated!r:.80}; allowed: a list of ranks, one a stage"
        )
    return tuple(stated)


def _call(schedule: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Orders:
    function = _function(schedule)
    most = 3 * virtual_stages * num_microbatches  # F, I and W of every stage and microbatch
    orders = []
    for rank in range(num_ranks):
        size = (rank, num_ranks, virtual_stages, num_microbatches)
        try:
            entries = list(islice(function(*size), most + 1))
        except (Exception, SystemExit) as error:
            raise _failed(schedule, f"it, called with {size},", error) from error
        if len(entries) > most:
            raise UserError(
                f"layout.schedule = {schedule!r}: rank {rank} has more than {most} entries; allowed: {most}"
            )
        order = []
        for index, entry in enumerate(entries):
            try:
                order.append(_compute(entry))
            except ValueError as error:
                raise UserError(f"layout.schedule = {schedule!r}: rank {rank}, entry {index}: {error}") from None
        orders.append(tuple(order))
    return tuple(orders)


def _failed(schedule: str, what: str, error: BaseException) -> UserError:
    return UserError(
        f"layout.schedule = {schedule!r}: {what} fails: {error_text(error)}; allowed: a function of (rank, num_ranks, "
        f"virtual_stages, num_microbatches) that yields a rank's entries"
    )


def _compute(entry: object) -> Compute:
    if isinstance(entry, Compute):
        return entry
    if isinstance(entry, str):
        return parse_token(entry)
    raise ValueError(f"{entry!r:.80} is no entry; allowed: Compute(op, stage, microbatch), or text as 'F3.0'")
