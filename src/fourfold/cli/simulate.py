"""`fourfold simulate` and `fourfold compare`: a predicted step, and several side by side."""

import shutil
from pathlib import Path

from fourfold.api.comparing import ColumnOptions, compared
from fourfold.api.options import PlaceOptions, RunOptions
from fourfold.api.programs import check_pp_rank
from fourfold.api.simulation import simulate as predict
from fourfold.cli.options import Flag, Json, print_json
from fourfold.report.screen import print_screen
from fourfold.report.side_by_side import side_by_side_document, side_by_side_lines
from fourfold.simulate.paused_garbage_collection import without_collection


@without_collection()
def simulate(
    run: Path,
    /,
    *overrides: str,
    place: PlaceOptions,
    pp_rank: int | None = None,
    memory: Flag = False,
    trace: Path | None = None,
    length: RunOptions,
    json: Json = False,
) -> int:
    """Predict a step of a run on a cluster: time, MFU, what waits for what, communication, memory; and the run's length and cost.

    The program that `fourfold show` prints is run against prices of kernels and links. Needs neither torch nor the corpus nor the
    cluster.

    Parameters
    ----------
    run
        A run file, the folder of a run, or preset:NAME.
    overrides
        Keys of the run file, as section.key=value.
    pp_rank
        Show this pipeline rank alone in the tables. Default: the first, the last and some between.
    memory
        Draw the memory over the step, and all kinds of buffers at its peak.
    trace
        Write the simulated step to this file, for ui.perfetto.dev.
    """
    found = predict(run, overrides, **vars(place), **vars(length))
    if pp_rank is not None:
        check_pp_rank(pp_rank, found.resolved.layout.pp)
    traced = found.write_trace(trace) if trace is not None else None
    if json:
        document = found.to_json(memory_curves=memory)
        if traced is not None:
            document["trace"] = {"file": str(trace), "text": traced}
        print_json(document)
    else:
        print_screen([*found.lines(pp_rank, memory), *(["", traced] if traced is not None else [])])
    return 0 if found.fits and found.idle is None else 1


def compare(*sources: str, columns: ColumnOptions, json: Json = False) -> int:
    """Put layouts, clusters, software or runs side by side: step, memory, bubble, exposed communication, days, cost.

    fourfold compare preset:llama3-70b --with "layout.tp=8 layout.cp=1" --with "layout.tp=2 layout.cp=4" compares three
    layouts;
    fourfold compare run.toml --cluster dgx-h100:64 --cluster dgx-b200:64 two clusters; fourfold compare runs/a runs/b two runs.

    Parameters
    ----------
    sources
        Run files, preset:NAME, folders of runs (as measured; predicted too where the cluster is known), or documents of plan --json
        and simulate --json. Keys of the run file, as section.key=value, hold for all predictions.
    """
    sides = compared(sources, columns)
    if json:
        print_json(side_by_side_document(sides))
    else:
        print("\n".join(side_by_side_lines(sides, shutil.get_terminal_size((100, 24)).columns)))
    return 0
