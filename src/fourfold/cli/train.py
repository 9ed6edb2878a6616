"""`fourfold train`: prepares a run, starts its ranks, shows them, and says how it went."""

import os
from pathlib import Path

from fourfold.api.training import train_locally
from fourfold.cli.outcome import conclude, say_finished
from fourfold.cli.rank import train_as_rank
from fourfold.config import load_run
from fourfold.launch.external import external_rank
from fourfold.launch.run_folder import RunFolder
from fourfold.report.ending import Command


def train(run: Path, /, *overrides: str, ranks: int | None = None, out: Path | None = None) -> int:
    """Train a model: prepares the data, verifies the program, starts the ranks and shows how they do.

    Ctrl-C (or SIGTERM) saves and stops; the same command goes on from there. Under torchrun or srun the command is one of
    the ranks itself.

    Parameters
    ----------
    run
        A run file.
    overrides
        Keys of the run file, as section.key=value, for example layout.zero=3 batch.steps=500.
    ranks
        How many processes to start on this machine. Default: as many as the layout asks for, or one a CUDA device.
    out
        The run's folder. Default: runs/NAME for a run file NAME.toml.
    """
    return train_with(Command(run, overrides, ranks, out))


def train_with(command: Command, worker: tuple[str, ...] | None = None, grace_seconds: float = 10.0) -> int:
    """The command, with a program that stands in for a rank, and the time it has to end once another failed."""
    config = load_run(command.run_file, command.overrides)
    folder = RunFolder(command.out if command.out is not None else Path("runs") / command.run_file.stem)
    external = external_rank(os.environ)
    if external is not None:
        return train_as_rank(config, folder, command, external)
    end = train_locally(config, command.ranks, folder, worker=worker, grace_seconds=grace_seconds)
    if end.outcome is None:
        say_finished(end.state, folder, command)
        return 0
    return conclude(end.outcome, end.state, folder, end.ready.resolved.config, command)
