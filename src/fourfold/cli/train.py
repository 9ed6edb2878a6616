"""`fourfold train`: prepares a run, starts its ranks, shows them, and says how it went."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fourfold.api.inputs import AS_NEAREST, LaunchOptions, MachineOptions
from fourfold.cli.options import Flag
from fourfold.config import load_run
from fourfold.train.fork_server import Started, end_server, start_server


def train(
    run: Path,
    /,
    *overrides: str,
    launch: LaunchOptions,
    as_nearest: Flag = False,
    rehearse: Flag = False,
    machines: MachineOptions,
) -> int:
    """Train a model: prepares the data, verifies the program, starts the ranks and shows how they do.

    Ctrl-C (or SIGTERM) saves and stops; the same command goes on from there, also with other ranks and another layout.
    On several machines, give the command once on each, with one folder that all share: --nodes, --node-rank and --master, or
    NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT in the environment. Under torchrun or srun the command supervises one rank.

    Parameters
    ----------
    run
        A run file.
    overrides
        Keys of the run file, as section.key=value, for example layout.zero=3 batch.steps=500.
    as_nearest
        Train a run file whose model only stands for another (model.nearest_to).
    rehearse
        Start nothing. Run one step of every class of ranks as if on CUDA devices, on tensors without data, and print what each
        pipeline rank allocates, sends and launches. Needs no device and no corpus. Exit code 1 where a device would reject it.
    """
    overrides = (*overrides, AS_NEAREST) if as_nearest else overrides
    if rehearse:
        from fourfold.api.rehearsal import rehearsal
        from fourfold.report.screen import print_screen

        for screen in rehearsal(run, overrides, launch.ranks):
            print_screen(screen)
        return 0
    load_run(run, overrides)  # a mistake in it starts nothing
    with _importing(machines.member() is None) as server:
        from fourfold.api.launching import train_with
        from fourfold.report.ending import Command

        out = Path(launch.out) if launch.out is not None else None
        command = Command(run, overrides, launch.ranks, out, machines.flags())
        return train_with(
            command,
            change=launch.change,
            machines=machines,
            server=server,
            decay=launch.decay,
            allow_other_code=launch.allow_other_code,
            start=launch.from_,
        )


@contextmanager
def _importing(is_alone: bool) -> Iterator[Started | None]:
    """The server that forks ranks. It imports torch while this process imports the launcher and prepares the run."""
    server = start_server() if is_alone else None
    try:
        yield server
    finally:
        if server is not None:
            end_server(server)
