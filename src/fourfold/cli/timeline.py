"""`fourfold show --timeline` and `--svg`: the schedule of all pipeline ranks, drawn."""

import json
from pathlib import Path
from typing import Literal, NamedTuple

from fourfold.config import UserError
from fourfold.config.whole_file import write_whole
from fourfold.launch.resolve import ResolvedRun
from fourfold.program.compiled import stage_flops
from fourfold.program.schedule import StageTimes, find_schedule
from fourfold.program.timeline import timeline
from fourfold.report.display import Terminal
from fourfold.report.timeline_svg import timeline_svg
from fourfold.report.timeline_terminal import print_timeline
from fourfold.report.timeline_text import Format, read_window, timeline_document
from fourfold.report.units import format_bytes, format_flops, plain_number

Times = Literal["unit", "flops"]


class Part(NamedTuple):
    """The options `--from`, `--to` and `--pp-ranks` as they were typed."""

    begin: str | None
    end: str | None
    ranks: str | None


def show_timeline(
    run: ResolvedRun, svg: Path | None, on_terminal: bool, as_json: bool, times: Times | None, part: Part
) -> int:
    """Prints the drawing or its numbers, and writes the picture. `part`: of the drawing; numbers and picture have all."""
    schedule = run.layout.schedule
    times = times or ("flops" if find_schedule(schedule).needs_times else "unit")
    orders = run.compiled.orders(run.spec)
    drawn = timeline(orders, run.layout.stage_ranks, stage_times(run, times))
    formats: tuple[Format, Format] = (format_flops, format_bytes) if times == "flops" else (plain_number, plain_number)
    window = read_window(drawn, *part)
    if svg is not None:
        _write(svg, timeline_svg(drawn, schedule, *formats))
    if as_json:
        print(json.dumps({**timeline_document(drawn, schedule), "times": times}))
    elif on_terminal:
        print_timeline(drawn, schedule, Terminal(markup=False), *formats, window)
    else:
        print(f"timeline written to {svg}")
    return 0


def stage_times(run: ResolvedRun, times: Times) -> StageTimes:
    """Times that the drawing takes every stage to need."""
    if times == "unit":
        return StageTimes.uniform(len(run.layout.stage_ranks))
    return stage_flops(run.compiled.stages, run.compiled.footprints)


def _write(path: Path, content: str) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise UserError(f"--svg {path}: cannot be written: {error.strerror}; what works: --svg timeline.svg") from None
