"""The measured runs that `fourfold validate` and `fit` compare with: files of cases, folders of runs, presets."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fourfold.config import UserError, load_run, run_preset_names
from fourfold.config.json_lines import read_jsonl
from fourfold.config.run_file import RUN_PRESET
from fourfold.cost.fitted import write_software
from fourfold.launch.resolve import stated_vocab_size
from fourfold.launch.run_folder import RUN_FILE, RunFolder
from fourfold.launch.shown import check_shown
from fourfold.report.run_files import check_files
from fourfold.validate import Case, checked_prediction, preset_case, read_cases, run_case, validate
from fourfold.validate.fit import SoftwareFit, fit_software
from fourfold.validate.outcome import Validation

PRESETS = "presets"


def cases_of(path: Path, cluster: str | None, trust: bool = False) -> list[Case]:
    """The cases of one argument; `presets` are all that have a published figure. `cluster`: of folders, instead of their own.
    `trust`: imports the code that runs name. Raises `UserError`."""
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
    config = folder.stage_config(trust)
    check_shown(config)
    return [run_case(str(path), config, _steps_alike(folder, trust), cluster)]


def _steps_alike(folder: RunFolder, trust: bool) -> Iterable[dict[str, Any]]:
    """The metrics of the steps that the run's stage makes at its full batch."""
    course, stage = folder.course(trust)
    first = max(stage.begin, course.batch_at(stage.end - 1).step)
    return (row for row in read_jsonl(folder.metrics) if isinstance(row.get("step"), int) and row["step"] >= first)


def validated(paths: Sequence[Path], cluster: str | None, trust: bool) -> Validation:
    """Measured runs beside their predictions. Raises `UserError`."""
    if not paths:
        raise UserError(
            "no case is given; what works: fourfold validate examples/cases.toml, the folder of a run, or presets"
        )
    return validate([case for path in paths for case in cases_of(path, cluster, trust)], checked_prediction)


def fitted(
    paths: Sequence[Path], out: Path | None, cluster: str | None, trust: bool, progress: Callable[[int, int], None]
) -> tuple[list[Case], SoftwareFit]:
    """The cases, and the software whose constants were adjusted to them, which `out` holds then if it helps. Raises
    `UserError`."""
    if not paths:
        raise UserError("no case is given; what works: fourfold fit examples/cases.toml --out mine.toml")
    if out is not None and out.suffix != ".toml":
        raise UserError(f"--out {out}: allowed: a file that ends in .toml; a value that works: mine.toml")
    if out is not None and out.exists():
        raise UserError(f"--out {out}: exists already; name a new file")
    cases = [case for path in paths for case in cases_of(path, cluster, trust)]
    found = fit_software(cases, progress)
    if out is not None and found.helps:
        sources = sorted({case.source for case in cases if case.source})
        title = f"Fitted by fourfold to {len(cases)} runs: {'; '.join(sources)[:500]}"
        write_software(out, found.base, found.constants, title)
    return cases, found
