"""`fourfold simulate`: a step of a run on a cluster, predicted, and the whole run's length and cost."""

from pathlib import Path

from fourfold.api.options import PlaceOptions, RunOptions
from fourfold.api.programs import check_pp_rank
from fourfold.api.simulation import simulate as predict
from fourfold.cli.options import Flag, Json, print_json
from fourfold.report.screen import print_screen
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
