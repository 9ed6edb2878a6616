"""`fourfold data`: prepares the corpus of a run and says what is in it, and in any step of the run."""

import json as json_text
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fourfold.cli.options import Json
from fourfold.config import RunConfig, UserError, load_run
from fourfold.config.schema import SkippedData


def data(run: Path, /, *overrides: str, step: int | None = None, row: int | None = None, json: Json = False) -> int:
    """Prepare the data of a run, and print what they are: files, documents, tokens, entropy, an excerpt.

    Prepared data is found again; fourfold train prepares by itself.

    Parameters
    ----------
    run
        A run file, or the folder of a run.
    overrides
        Keys of the run file, as section.key=value, for example data.corpus=texts data.tokenizer=bpe:8192.
    step
        Print the samples of this step (the first is 0) instead: source, file, record and place of each row, and how its text
        begins. These are the rows that the ranks read, under any layout.
    row
        Print this row of the step alone.
    """
    from fourfold.data.weights import weight_phases
    from fourfold.report.corpus import corpus_lines, corpus_summary
    from fourfold.report.step_samples import step_lines, step_samples

    if row is not None and step is None:
        raise UserError(f"--row {row}: is a row of a step; what works: --step 0 --row {row}")
    config, prepared, skips = _of_folder(run, overrides, step) if run.is_dir() else (load_run(run, overrides), None, [])
    weight_phases(config)
    if prepared is None:
        prepared = _prepared(config, step, json)
    sets = _validation(config, prepared, json) if step is None else {}
    table = corpus_summary(prepared, config, sets) if step is None else step_samples(prepared, config, step, row, skips)
    if json:
        print(json_text.dumps(table, indent=1, ensure_ascii=False))
    else:
        print("\n".join(corpus_lines(table) if step is None else step_lines(table)))
    return 0


def _prepared(config: RunConfig, step: int | None, json: bool) -> Any:
    """The data of the stage of a step, or of the first, in the tokens of the first."""
    from fourfold.data.prepare import prepare, prepare_in_tokens_of
    from fourfold.report.display import preparing
    from fourfold.report.step_samples import stage_of_step

    data = config.data if step is None else stage_of_step(config, step)[1].config.data
    with nullcontext(lambda text: print(text, file=sys.stderr)) if json else preparing("reading the corpus") as report:
        first = prepare(config.data, report)
        return first if data.corpus == config.data.corpus else prepare_in_tokens_of(first, data, report)


def _validation(config: RunConfig, prepared: Any, json: bool) -> dict[str, Any]:
    from fourfold.data.prepare import prepare_validation

    return prepare_validation(config, prepared, lambda text: print(text, file=sys.stderr if json else sys.stdout))


def _of_folder(run: Path, overrides: tuple[str, ...], step: int | None) -> tuple[RunConfig, Any, list[SkippedData]]:
    """The run that stands in a folder; the data of the stage of a step, where they are still there; the data that it left out."""
    from fourfold.data.prepared import open_prepared
    from fourfold.data.skipped import left_out_by
    from fourfold.launch.run_folder import RunFolder
    from fourfold.report.run_files import check_files
    from fourfold.report.step_samples import stage_of_step

    if overrides:
        raise UserError(
            f"{overrides[0]}: {run} is the folder of a run, whose data are as they are; what works: a run file"
        )
    check_files(run)
    folder = RunFolder(run)
    config = folder.require_config(trust=True)
    stage = 0 if step is None else stage_of_step(config, step)[1].number
    path = folder.stage_data(stage).get("prepared")
    prepared = open_prepared(path) if isinstance(path, str) and Path(path).exists() else None
    return config, prepared, left_out_by(run).skipped
