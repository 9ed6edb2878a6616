"""Measured runs as they are named on a command line: files of cases, folders of runs, presets."""

from pathlib import Path

from fourfold.config import UserError, load_run, run_preset_names
from fourfold.config.json_lines import read_jsonl
from fourfold.config.run_file import RUN_PRESET
from fourfold.launch.resolve import stated_vocab_size
from fourfold.launch.run_folder import RUN_FILE, RunFolder
from fourfold.validate import Case, preset_case, read_cases, run_case

PRESETS = "presets"


def cases_of(path: Path, cluster: str | None) -> list[Case]:
    """The cases of one argument; `presets` are all that have a published figure. `cluster`: of folders, instead of their own."""
    if str(path) == PRESETS:
        runs = {name: load_run(Path(RUN_PRESET + name)) for name in run_preset_names()}
        return [preset_case(name, run) for name, run in runs.items() if run.published.source]
    if str(path).startswith(RUN_PRESET):
        return [preset_case(str(path).removeprefix(RUN_PRESET), load_run(path))]
    if not path.is_dir():
        return read_cases(path, stated_vocab_size)
    folder = RunFolder(path)
    if not folder.run_file.is_file():
        raise UserError(f"{path}: holds no {RUN_FILE}; name a file of cases, or a folder that fourfold train wrote")
    return [run_case(str(path), folder.require_config(), read_jsonl(folder.metrics), cluster)]
