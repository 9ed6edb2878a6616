"""`fourfold validate`: measured runs, stated as cases or left behind as folders, beside their predictions."""

import json as json_text
from pathlib import Path

from fourfold.cli.options import Flag
from fourfold.config import UserError, load_run, run_preset_names
from fourfold.config.run_file import RUN_PRESET
from fourfold.config.run_rows import read_rows
from fourfold.launch.resolve import stated_vocab_size
from fourfold.launch.run_folder import RUN_FILE, RunFolder
from fourfold.launch.shown import check_shown
from fourfold.report.format_validation import validation_lines
from fourfold.report.run_files import check_files
from fourfold.simulate.paused_garbage_collection import without_collection
from fourfold.validate import Case, checked_prediction, preset_case, read_cases, run_case
from fourfold.validate import validate as compare

PRESETS = "presets"


@without_collection()
def validate(*paths: Path, cluster: str | None = None, trust: Flag = False, json: Flag = False) -> int:
    """Predict runs that were measured and compare: errors of step time and memory, order of layouts, regret.

    Cases are stated in the run file's words, each with its cluster, its software and what was measured; examples/cases.toml shows
    how. Several layouts of one model, cluster and batch are ranked against each other. `presets` names the runs of the literature
    that ship: each is compared with its published figure.

    Parameters
    ----------
    paths
        Files of [[case]] tables, folders of runs that fourfold trained, `presets`, or preset:NAME.
    cluster
        Predict the runs of the folders on this cluster: NAME, NAME:DEVICES or a cluster file. Default: each run's own.
    trust
        Import the Python code that a run names (layout.schedule, model.block = python:...). train imports it in any case.
    json
        Print one JSON document and nothing else.
    """
    if not paths:
        raise UserError(
            "no case is given; what works: fourfold validate examples/cases.toml, the folder of a run, or presets"
        )
    found = compare([case for path in paths for case in cases_of(path, cluster, trust)], checked_prediction)
    print(json_text.dumps(found.to_json(), indent=1, allow_nan=False) if json else "\n".join(validation_lines(found)))
    return 0 if any(outcome.prediction.refused is None for outcome in found.outcomes) else 1


def cases_of(path: Path, cluster: str | None, trust: bool = False) -> list[Case]:
    """The cases of one argument; `presets` are all that have a published figure. `cluster`: of folders, instead of their own.
    `trust`: imports the code that runs name."""
    if str(path) == PRESETS:
        runs = {name: load_run(Path(RUN_PRESET + name)) for name in run_preset_names()}
        return [preset_case(name, run) for name, run in runs.items() if run.published.source]
    if str(path).startswith(RUN_PRESET):
        return [preset_case(str(path).removeprefix(RUN_PRESET), load_run(path))]
    if not path.is_dir():
        return read_cases(path, stated_vocab_size, trust)
    check_files(path)
    folder = RunFolder(path)
    if not folder.run_file.is_file():
        raise UserError(f"{path}: holds no {RUN_FILE}; name a file of cases, or a folder that fourfold train wrote")
    config = folder.require_config(trust)
    check_shown(config)
    return [run_case(str(path), config, read_rows(folder.metrics), cluster)]
