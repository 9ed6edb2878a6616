"""Where a run's state goes and comes from: folders of checkpoints of its own, and the one that a new run begins from."""

import secrets
from contextlib import suppress
from pathlib import Path

from fourfold.config import RunConfig, UserError, num_steps
from fourfold.config.remote_path import place
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.ownership import Owner, owner_at, owner_in, require_original, require_own

_PLACES = ("directory", "start_from")


def with_absolute_places(config: RunConfig) -> RunConfig:
    """The run with folders of checkpoints named so that they are the same ones wherever the command is repeated."""
    stated = {key: value for key in _PLACES if (value := getattr(config.checkpoint, key)) is not None}
    absolute = {
        key: value if "://" in value else str(Path(value).expanduser().absolute()) for key, value in stated.items()
    }
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update=absolute)})


def owner_of(folder: RunFolder) -> Owner:
    """The run that stands in a folder, or one that begins there."""
    return owner_at(owner_in(folder.data()).run or secrets.token_hex(8), folder.path)


def require_own_places(folder: RunFolder, config: RunConfig, old: RunConfig | None, own: Owner) -> None:
    """Raises `UserError` where a folder that the run would save to, or go on from, is another run's; or its own folder a copy of
    one that is still there. `old`: the run that stands there and has begun."""
    require_original(folder.path, own)
    known = folder.checkpoint_roots(old) if old is not None else []
    for root in dict.fromkeys((folder.checkpoint_root(config), *known)):
        require_own(root, own, root in known)


def step_to_go_on_from(folder: RunFolder, old: RunConfig) -> int | None:
    """The step of the newest checkpoint whose manifest can be read; of the newest where none can, which the ranks then tell; None
    without one. Raises `FinalFailure` where another version of fourfold wrote it."""
    saved = folder.saved_checkpoints(old)
    if not saved:
        return None
    from fourfold.checkpoint import DamagedCheckpoint, read_manifest

    for step in sorted(saved, reverse=True):
        with suppress(DamagedCheckpoint):
            return read_manifest(saved[step]).step
    return max(saved)


def first_step(config: RunConfig) -> int:
    """The step at which a new run begins: that of the checkpoint that `checkpoint.start_from` leads to, or 0. Raises `UserError`
    and `RunFailure`."""
    stated = config.checkpoint.start_from
    if stated is None:
        return 0
    from fourfold.checkpoint import DamagedCheckpoint, read_manifest
    from fourfold.train.state import start_paths

    problems = []
    for path in start_paths(place(stated)):
        try:
            step = read_manifest(path).step
        except DamagedCheckpoint as error:
            problems.append(f"\n  {error.problem}")
            continue
        if step >= num_steps(config):
            raise UserError(
                f"checkpoint.start_from = {stated}: begins at step {step}, and batch.steps = {num_steps(config)}; allowed: "
                f"more steps than that; what works: batch.steps={2 * step}"
            )
        return step
    raise UserError(
        f"checkpoint.start_from = {stated}: holds no checkpoint that can be read; allowed: a run's folder, a folder of "
        f"checkpoints, or one such as runs/tiny/checkpoints/step-000100{''.join(problems)}"
    )
