"""`fourfold checkpoint`: lists, verifies, exports and reshards the checkpoints of a run, without its ranks."""

import sys
from pathlib import Path
from typing import Literal

from fourfold.api.checkpoints import (
    checkpoint_paths,
    chosen_checkpoint,
    replay,
    reshard,
    saved_checkpoint,
    verify_checkpoint,
)
from fourfold.cli.huggingface import write_export
from fourfold.cli.options import Flag, print_json
from fourfold.config import RunFailure, UserError
from fourfold.config.remote_path import place
from fourfold.launch.machine import require_packages
from fourfold.report.units import format_bytes


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
        write_export(found, Path(out), dtype)
        return 0
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
