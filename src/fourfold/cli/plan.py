"""`fourfold plan`: the layout to run, how fast it will be, and why the others lose."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fourfold.api.options import PlanQuestion, SearchOptions
from fourfold.api.plan_files import check_plan_files, write_plan_files
from fourfold.api.planning import plan as make_plan
from fourfold.cli.options import Flag, Json, print_json
from fourfold.cli.progress import showing
from fourfold.report.screen import print_screen
from fourfold.simulate.paused_garbage_collection import without_collection

NEXT = "next     --out run.toml: row 1 as a run file for fourfold job; --verbose: all figures"


@without_collection()
def plan(
    run: str | None = None,
    /,
    *overrides: str,
    question: PlanQuestion,
    as_: Annotated[
        Literal["megatron", "bridge", "torchtitan", "deepspeed", "slurm", "k8s", "skypilot"] | None,
        Parameter(name="--as"),
    ] = None,
    out: Path | None = None,
    search: SearchOptions,
    verbose: Flag = False,
    json: Json = False,
) -> int:
    """Find the fastest layout of a model on a cluster, by simulating the programs that would run; without torch or the cluster.

    State a run file, or --model, --cluster, --sequence-length and a batch.

    Parameters
    ----------
    run
        A run file or preset:NAME: its model, batch and number format; of its [layout], prefetch alone is looked at.
    overrides
        Keys of the run file, as section.key=value. Those of [layout] hold the search to a value or several: layout.tp=8,
        layout.pp=2,4; layout.overlap_experts, layout.offload_optimizer (true or false) and layout.offload=none to one.
    as_
        Print a script too that starts that trainer with the best layout, and what it cannot express. bridge: Megatron-Bridge. Or
        the job of a scheduler that runs fourfold train on the file that --out names, as fourfold job does.
    out
        Write the best layout to this new file, as a run that fourfold simulate and show take, and train once it says how long.
    verbose
        Print all figures: what the first layout spends its time, network and memory on, every layout, what was left out.
    """
    if run is not None and "=" in run and not Path(run).exists():
        overrides, run = (run, *overrides), None
    check_plan_files(out, as_)
    with showing(json) as progress:
        planned = make_plan(run, overrides, **vars(question), **vars(search), progress=progress)
    files = write_plan_files(planned, question, out, as_, search.trust)
    if json:
        print_json(planned.to_json() | files.to_json())
        return 0 if planned.best is not None else 1
    for screen in planned.lines(verbose, NEXT if files.run_file is None and files.export is None else None):
        print_screen(screen)
    for line in files.export_lines():
        print(line)
    if files.run_file is not None:
        print(f"\nwritten to {files.run_file}; use it as: {files.again}")
        print_screen(files.open_keys)
    return 0 if planned.best is not None else 1
