"""`fourfold train`: prepares a run, starts its ranks, shows them, and says how it went."""

import os
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from fourfold.cli.console import preparing
from fourfold.cli.outcome import conclude, run_info, say_finished, write_plain
from fourfold.cli.rank import train_as_rank
from fourfold.config import UserError, load_run, num_steps
from fourfold.launch.external import external_rank
from fourfold.launch.machine import require_packages, threads_per_rank
from fourfold.launch.processes import WORKER, launch_local
from fourfold.launch.ready import ReadyRun, finished_at, prepare_run
from fourfold.launch.run_folder import RunFolder
from fourfold.report.ending import Command
from fourfold.report.live import LiveDisplay
from fourfold.report.plain import PlainDisplay
from fourfold.report.run_state import RunState


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


def train_with(command: Command, worker: tuple[str, ...] = WORKER, grace_seconds: float = 10.0) -> int:
    """The command, with the program that a rank runs and the time it has to end once another failed."""
    config = load_run(command.run_file, command.overrides)
    num_steps(config)
    if command.ranks is not None and command.ranks < 1:
        raise UserError(f"--ranks {command.ranks}: allowed: 1 or more; a value that works: --ranks 2")
    folder = RunFolder(command.out if command.out is not None else Path("runs") / command.run_file.stem)
    require_packages("train", "torch", "safetensors", "tokenizers")
    external = external_rank(os.environ)
    if external is not None:
        return train_as_rank(config, folder, command, external)
    with ExitStack() as locks:
        if stands := folder.config() is not None:
            locks.enter_context(folder.locked())
        with preparing("preparing the data") as report:
            ready = prepare_run(config, command.ranks, folder, report)
        if stands and finished_at(folder, config) is not None:
            say_finished(ready, folder, command)
            return 0
        folder.write(ready.resolved.config, ready.data_table())
        if not stands:
            locks.enter_context(folder.locked())
        return _launch(ready, folder, command, worker, grace_seconds)


def _launch(ready: ReadyRun, folder: RunFolder, command: Command, worker: tuple[str, ...], grace_seconds: float) -> int:
    config, ranks = ready.resolved.config, ready.resolved.layout.world_size
    threads = threads_per_rank(config, ranks)
    state = RunState(run_info(ready, folder))
    for warning in ready.warnings:
        write_plain(warning)
    console = Console(highlight=False)
    if console.is_terminal:
        with LiveDisplay(state, console) as live:
            outcome = launch_local(folder, ranks, threads, live.update, live.notice, worker, grace_seconds)
    else:
        plain = PlainDisplay(state, write_plain)
        plain.begin()
        outcome = launch_local(folder, ranks, threads, plain.update, plain.notice, worker, grace_seconds)
    return conclude(outcome, state, folder, config, command)
