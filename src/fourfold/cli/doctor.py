"""`fourfold doctor`: which rank of a run is at fault, where it stands, and who waits for it."""

from pathlib import Path

from fourfold.cli.options import Flag, print_json
from fourfold.report.run_files import check_files
from fourfold.supervise.doctor import diagnose, diagnosis_lines


def doctor(run: Path, /, *, trust: Flag = False, json: Flag = False) -> int:
    """Say which rank of a run is at fault: where every rank stands, in which call, and who waits for whom.

    Reads the counters, calls and events of a run in progress on this machine, or what a dead one left; disturbs nothing. A rank
    writes its calls itself; where py-spy is installed, the native calls are shown too. Exit code 1 where the ranks live and none
    gets on.

    Parameters
    ----------
    run
        The folder of a run.
    trust
        Import the Python code that the run names (layout.schedule, model.block = python:...). train imports it in any case.
    json
        Print one JSON document and nothing else.
    """
    check_files(run)
    found = diagnose(run, trust)
    if json:
        print_json(found.to_json())
    else:
        print("\n".join(diagnosis_lines(found)))
    return 1 if found.verdict is not None else 0
