"""`fourfold checkpoint`, `import` and `export`: the states of a run, and folders of Hugging Face."""

import sys
from pathlib import Path
from typing import Literal

from fourfold.api.checkpoints import (
    SavedCheckpoint,
    checkpoint_paths,
    chosen_checkpoint,
    replay,
    reshard,
    saved_checkpoint,
    verify_checkpoint,
)
from fourfold.api.huggingface import export_model, import_model
from fourfold.cli.options import Flag, print_json
from fourfold.config import RunFailure, UserError
from fourfold.config.remote_path import place
from fourfold.launch.machine import require_packages
from fourfold.report.units import format_bytes, format_count


def checkpoint(
    action: Literal["list", "verify", "export", "reshard"],
    path: str,
    /,
    *overrides: str,
    step: int | None = None,
    out: str | None = None,
    dtype: Literal["fp32", "bf16", "fp64"] = "fp32",
    ranks: int | None = None,
    replay: int | None = None,
    trust: Flag = False,
    json: Flag = False,
) -> int:
    """List, verify, export or reshard checkpoints, without the ranks of their run.

    Parameters
    ----------
    action
        list: step, size and layout of each. verify: read every byte and compare it with its digest. export: write a Hugging
        Face folder. reshard: write one as another layout would have saved it.
    path
        The folder of a run, one of its checkpoints, or a folder of checkpoints; also an fsspec URL such as s3://bucket/folder.
    overrides
        reshard: the layout, for example layout.tp=2 layout.zero=1.
    step
        Which checkpoint. Default: the newest; verify: all.
    out
        export: the folder to write, new or empty. reshard: the folder of checkpoints to write to.
    dtype
        export: the number format that is written.
    ranks
        reshard: how many ranks the layout is for. Default: as many as it states.
    replay
        verify: run so many steps from the checkpoint again, and say whether losses, gradient norms and state are equal.
    trust
        export, reshard, verify --replay: import the Python code that the run names (layout.schedule, model.block = python:...).
    json
        list, verify: print one JSON document and nothing else.
    """
    require_packages("checkpoint", "torch", "safetensors")
    root = place(path)
    if action == "list":
        return _list(root, step, json)
    if action == "verify":
        return _verify(root, step, json) if replay is None else _replay(root, step, replay, trust)
    found = chosen_checkpoint(root, step, trust)
    if out is None:
        raise UserError(f"--out is missing: {action} writes a folder; a value that works: --out {root.name}-{action}")
    if action == "export":
        return print_export(found, Path(out), dtype)
    folder, config = reshard(found, overrides, ranks, place(out))
    layout = config.layout
    print(
        f"{folder}: step {found.step}; go on from it with checkpoint.directory={out}, layout.tp={layout.tp}, "
        f"layout.pp={layout.pp}, layout.dp_shard={layout.dp_shard} and so on"
    )
    return 0


def _list(path: Path, step: int | None, json: bool) -> int:
    paths, folder = checkpoint_paths(path)
    chosen = paths if step is None else [chosen_checkpoint(path, step).path]
    rows, damaged = [], 0
    for each in chosen:
        try:
            rows.append(saved_checkpoint(each, folder).to_json())
        except RunFailure as error:
            damaged += 1
            print(f"error: {error}", file=sys.stderr)
    if json:
        print_json({"checkpoints": rows})
        return int(damaged > 0)
    for row in rows:
        degrees = " ".join(
            f"{axis} {degree}" for axis, degree in row["layout"].items() if degree != 1 or axis == "zero"
        )
        print(f"step {row['step']:>8}  {format_bytes(row['size_bytes']):>10}  {degrees}  {row['path']}")
    return int(damaged > 0)


def _verify(path: Path, step: int | None, json: bool) -> int:
    """Verifies all, and says which are good; 1 where one is not."""
    paths = checkpoint_paths(path)[0] if step is None else [chosen_checkpoint(path, step).path]
    problems = {}
    for each in paths:
        try:
            verify_checkpoint(each)
            if not json:
                print(f"{each}: every byte is as it was saved")
        except RunFailure as error:
            problems[str(each)] = str(error)
            if not json:
                print(f"error: {error}", file=sys.stderr)
    if json:
        rows = [{"path": str(each), "problem": problems.get(str(each))} for each in paths]
        print_json({"checkpoints": rows})
    return int(bool(problems))


def _replay(path: Path, step: int | None, steps: int, trust: bool) -> int:
    found = chosen_checkpoint(path, step, trust)
    verify_checkpoint(found.path)
    end = replay(found, steps)
    what = "losses, gradient norms and the state after them" if end.state_compared else "losses and gradient norms"
    if end.differences:
        raise RunFailure(
            f"{found.path}: steps {end.first} to {end.last - 1} are not equal when run again: {end.differences[0]}"
        )
    print(f"{found.path}: steps {end.first} to {end.last - 1} run again: {what} are equal, bit for bit")
    return 0


def import_(
    folder: Path,
    /,
    *,
    out: Path,
    corpus: str = "stdlib",
    tokenizer: str | None = None,
    without_dropout: bool = False,
) -> int:
    """Write a run file that goes on training the model of a Hugging Face folder.

    Reads config.json and checks that every tensor is there and whole. Keys and tensors that are not used are refused or named. The
    weights stay where they are: the run file names them as model.initial.

    Parameters
    ----------
    folder
        A folder with config.json and safetensors, as save_pretrained of transformers writes it.
    out
        The run file to write, a new one.
    corpus
        What to train on: "stdlib", a folder, a file, a glob, or a Megatron .bin/.idx pair.
    tokenizer
        "bytes", "bpe:N", or the path of a tokenizer.json. Default: the folder's own tokenizer.json.
    without_dropout
        Import a model whose config.json states dropout, and train it without. By default it is refused.
    """
    made = import_model(folder, out, corpus, tokenizer, without_dropout)
    print(f"{out}: {made.family}, {format_count(made.num_parameters)} parameters, all tensors found and whole")
    for note in made.notes:
        print(f"note: {note}")
    print(f"Set [batch] and [optimizer] to your liking, then: fourfold train {out}")
    return 0


def export(
    run: Path,
    /,
    *,
    out: Path,
    step: int | None = None,
    dtype: Literal["fp32", "bf16", "fp64"] = "fp32",
    trust: Flag = False,
) -> int:
    """Write a checkpoint as a Hugging Face folder: config.json, safetensors and the tokenizer, as transformers loads it.

    Parameters
    ----------
    run
        The folder of a run, or one of its checkpoints.
    out
        The folder to write, new or empty.
    step
        Which checkpoint. Default: the latest.
    dtype
        The number format that is written.
    trust
        Import the Python code that the run names (model.block, layout.schedule = python:...). train imports it in any case.
    """
    require_packages("export", "torch", "safetensors")
    return print_export(chosen_checkpoint(run, step, trust), out, dtype)


def print_export(found: SavedCheckpoint, out: Path, dtype: str) -> int:
    """Writes a checkpoint as a Hugging Face folder, and says so."""
    for warning in export_model(found, out, dtype):
        print(f"warning: {warning}")
    print(f'{out}: step {found.step} in {dtype}; in transformers: AutoModelForCausalLM.from_pretrained("{out}")')
    return 0
