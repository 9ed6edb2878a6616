"""One rank's measurements of its latest steps, by kind of instruction: a file of the run folder that `fourfold report` reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from fourfold.config import RunFailure
from fourfold.config.errors import unwritable
from fourfold.config.run_rows import finite_number
from fourfold.config.whole_file import write_whole
from fourfold.program import Program, digest
from fourfold.program.kinds import instruction_kinds, seconds_by_kind
from fourfold.program.view import RankView

FOLDER = "measured"
_MOST_FILES, _LEAST_SECONDS = 2**18, 1e-12
"""Files that are read at most; no step takes less time, so that a rate is a number."""


class Timed(Protocol):
    """One timed step, as `runtime.clock` keeps it."""

    @property
    def step(self) -> int: ...
    @property
    def begun(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def ends(self) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class KindTime:
    """How often a step does it, and the median over steps of the seconds that all of them took together."""

    count: int
    seconds: float


@dataclass(frozen=True)
class StepTimeline:
    """One step as it ran: its number, when its first instruction began (Unix time), after how many seconds each one was over."""

    step: int
    begun: float
    ends: tuple[float, ...]


@dataclass(frozen=True)
class RankMeasured:
    """One rank's measurements. `steps`: the number of timed steps; `last_step`: the latest of them; `step_seconds`: their median,
    the batch's preparation included; `sent_bytes`: of a step, by axes; `program`: the digest of its program; `peak_memory_bytes`:
    None where nothing measured it; `timeline`: of the latest step, where the rank is the first of its stage."""

    rank: int
    world_size: int
    device: str
    program: str
    steps: int
    last_step: int
    step_seconds: float
    kinds: Mapping[str, KindTime]
    sent_bytes: Mapping[str, int]
    peak_memory_bytes: int | None
    timeline: StepTimeline | None = None
    version: int = field(default=1)


def rank_measured(
    view: RankView,
    program: Program,
    rank: int,
    device: str,
    steps: Sequence[Timed],
    sent_bytes: Mapping[str, int],
    peak_memory_bytes: int | None,
) -> RankMeasured:
    """From the steps that a rank timed, at least one of them."""
    layout, last = view.spec.layout, steps[-1]
    place = layout.coordinates(rank)
    is_first = not any(place[axis] for axis in place if axis != "pp")
    return RankMeasured(
        rank=rank,
        world_size=layout.world_size,
        device=device,
        program=digest(program),
        steps=len(steps),
        last_step=last.step,
        step_seconds=median(step.seconds for step in steps),
        kinds=kind_times(instruction_kinds(program, view.stages.segments), steps),
        sent_bytes=dict(sent_bytes),
        peak_memory_bytes=peak_memory_bytes,
        timeline=StepTimeline(last.step, last.begun, last.ends) if is_first else None,
    )


def check_sent(
    program: Program, declared_bytes: Mapping[str, int], sent_bytes: Mapping[str, int], rank: int, step: int
) -> None:
    """Raises `RunFailure` where a rank did not send what its program declares, by axes.

    A rank that leaves a collective out need not hang: gloo pairs the others' with its next one of that size.
    """
    for axes, declared in declared_bytes.items():
        missing = declared - sent_bytes.get(axes, 0)
        if missing:
            sizes = ((s, sum(c.sent_bytes for c in s.collectives if c.axes == axes)) for s in program.instructions)
            found = next((f", as if it had left out `{s.short}`" for s, size in sizes if size == missing), "")
            raise RunFailure(
                f"rank {rank} sent {declared - missing} bytes over {axes} in step {step}, its program declares {declared}{found}; "
                f"this is a defect of the program that ran there, or of its machine"
            )


def kind_times(kinds: Sequence[str], steps: Sequence[Timed]) -> dict[str, KindTime]:
    """Medians over steps of what every kind of instruction took in a step."""
    found = [seconds_by_kind(kinds, step.ends) for step in steps]
    return {kind: KindTime(len(found[0][kind]), median(sum(each[kind]) for each in found)) for kind in found[0]}


def measured_path(folder: Path, rank: int) -> Path:
    return folder / FOLDER / f"rank-{rank:05d}.json"


def write_measured(folder: Path, measured: RankMeasured) -> None:
    """Replaces the rank's file in one piece. Raises `RunFailure` where the disk does not take it."""
    path = measured_path(folder, measured.rank)
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(asdict(measured), separators=(",", ":")) + "\n")
    except OSError as error:
        raise RunFailure(unwritable(path, error)) from None


def read_measured(folder: Path) -> list[RankMeasured]:
    """Reads the files of all ranks, in the order of ranks. Other files are left out. Empty where there are none."""
    found = []
    for path in sorted(islice((folder / FOLDER).glob("rank-*.json"), _MOST_FILES)):
        try:
            found.append(_parse(json.loads(path.read_bytes())))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return sorted((each for each in found if each.rank < each.world_size), key=lambda each: each.rank)


def _parse(table: dict[str, Any]) -> RankMeasured:
    line, peak = table["timeline"], table["peak_memory_bytes"]
    return RankMeasured(
        rank=_count(table["rank"]),
        world_size=_count(table["world_size"]) or 1,
        device=str(table["device"]),
        program=str(table["program"]),
        steps=_count(table["steps"]),
        last_step=_count(table["last_step"]),
        step_seconds=max(_LEAST_SECONDS, _seconds(table["step_seconds"])),
        kinds={str(k): KindTime(_count(v["count"]), _seconds(v["seconds"])) for k, v in table["kinds"].items()},
        sent_bytes={str(axes): _count(size) for axes, size in table["sent_bytes"].items()},
        peak_memory_bytes=None if peak is None else _count(peak),
        timeline=None
        if line is None
        else StepTimeline(_count(line["step"]), _seconds(line["begun"]), tuple(map(_seconds, line["ends"]))),
    )


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError(value)
    return value


def _seconds(value: Any) -> float:
    number = finite_number(value)
    if number is None or number < 0:
        raise ValueError(value)
    return number
