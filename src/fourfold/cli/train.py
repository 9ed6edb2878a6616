"""`fourfold train`: prepares a run, starts its ranks, shows them, and says how it went."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fourfold.cli.options import AS_NEAREST, Flag
from fourfold.config import load_run
from fourfold.launch.external import Member, member_of, with_master
from fourfold.train.fork_server import Started, end_server, start_server

if TYPE_CHECKING:
    from fourfold.report.ending import Command

GRACE_SECONDS = 10.0


class MachineFlags(NamedTuple):
    """The command line on this machine and the others; None: the environment says it, or there is one machine."""

    spares: int = 0
    nodes: int | None = None
    node_rank: int | None = None
    master: str | None = None

    def member(self) -> Member | None:
        """This process among those that others start; None where it is alone."""
        return member_of(with_master(os.environ, self.master), self.nodes, self.node_rank)

    def flags(self) -> list[str]:
        """The words that say it again."""
        values = (self.spares or None, self.nodes, self.node_rank, self.master)
        stated = zip(("--spares", "--nodes", "--node-rank", "--master"), values, strict=True)
        return [word for name, value in stated if value is not None for word in (name, str(value))]


ONE_MACHINE = MachineFlags()


def train(
    run: Path,
    /,
    *overrides: str,
    ranks: int | None = None,
    out: Path | None = None,
    change: Flag = False,
    as_nearest: Flag = False,
    rehearse: Flag = False,
    spares: int = 0,
    nodes: int | None = None,
    node_rank: int | None = None,
    master: str | None = None,
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
    ranks
        How many processes to start on this machine. Default: its share of those that the layout asks for, or one a CUDA device.
    out
        The run's folder. Default: runs/NAME for a run file NAME.toml.
    change
        Go on with other values of [optimizer] than the folder's run began with, for example optimizer.lr=1e-4.
    as_nearest
        Train a run file whose model only stands for another (model.nearest_to).
    rehearse
        Start nothing. Run one step of every class of ranks as if on CUDA devices, on tensors without data, and print what each
        pipeline rank allocates, sends and launches. Needs no device and no corpus. Exit code 1 where a device would reject it.
    spares
        Devices of this machine (or processes, on a CPU) beside those of --ranks that take the place of lost ones.
    nodes
        How many machines the run takes.
    node_rank
        The number of this machine, from 0, which leads. Machines from number --nodes on are spare.
    master
        HOST:PORT at which the machines reach the one that leads.
    """
    overrides = (*overrides, AS_NEAREST) if as_nearest else overrides
    if rehearse:
        return _rehearse(run, overrides, ranks)
    load_run(run, overrides)  # a mistake in it starts nothing
    machines = MachineFlags(spares, nodes, node_rank, master)
    with _importing(machines.member() is None) as server:
        from fourfold.report.ending import Command

        command = Command(run, overrides, ranks, out, machines.flags())
        return train_with(command, change=change, machines=machines, server=server)


@contextmanager
def _importing(is_alone: bool) -> Iterator[Started | None]:
    """The server that forks ranks. It imports torch while this process imports the launcher and prepares the run."""
    server = start_server() if is_alone else None
    try:
        yield server
    finally:
        if server is not None:
            end_server(server)


def _rehearse(run: Path, overrides: tuple[str, ...], ranks: int | None) -> int:
    import torch

    from fourfold.api.training import check_request
    from fourfold.hardware import THIS, load_cluster
    from fourfold.launch.host_memory import host_need
    from fourfold.launch.resolve import resolve_run, stated_vocab_size
    from fourfold.model.torch_attention import default_backend
    from fourfold.model.torch_operations import torch_dtype
    from fourfold.rehearse.run import rehearse, rehearse_graphs
    from fourfold.rehearse.training import NoSmallRun, rehearse_training, require_host_memory
    from fourfold.report.console import preparing
    from fourfold.report.format_rehearsal import host_memory_line, rehearsal_lines, training_lines
    from fourfold.report.format_run import layout_line, model_line, transport_lines
    from fourfold.report.screen import print_screen
    from fourfold.runtime.graph import check_graphs
    from fourfold.supervise.signals import stopped_by_signals

    config = load_run(run, overrides)
    check_request(config, ranks)
    resolved = resolve_run(config, ranks, stated_vocab_size(config.model, config.data), "native")
    if config.run.cuda_graphs:
        device = torch.device("cuda")
        attention = default_backend(device, torch_dtype(resolved.spec.compute))
        check_graphs(config, resolved.spec, device, attention.name)
        rehearse_graphs(resolved.spec, config.optimizer)
    results = rehearse(resolved.spec, config.optimizer)
    need, cluster = host_need(resolved, pins=True), config.cluster.preset
    machine = None if cluster == THIS else load_cluster(cluster)
    lines = [model_line(resolved), layout_line(resolved), *transport_lines(resolved, "a rehearsal"), ""]
    lines += rehearsal_lines(results, resolved.layout.world_size, config.run.cuda_graphs)
    print_screen([*lines, host_memory_line(need, machine), ""])
    require_host_memory(need, machine)
    try:
        with stopped_by_signals(), preparing("training in small on devices that are not there"):
            trained = rehearse_training(resolved)
    except NoSmallRun as error:
        print_screen([f"not rehearsed: a training in small, which this run has not: {error}"])
        return 0
    print_screen(training_lines(trained))
    return 0


def train_with(
    command: "Command",
    worker: tuple[str, ...] | None = None,
    grace_seconds: float = GRACE_SECONDS,
    change: bool = False,
    machines: MachineFlags = ONE_MACHINE,
    server: Started | None = None,
) -> int:
    """The command, with a program that stands in for a rank, and the time it has to end once another failed. `server`: what forks
    ranks, started before."""
    from fourfold.api.training import train_locally
    from fourfold.cli.outcome import conclude, say_finished
    from fourfold.cli.take_part import take_part
    from fourfold.launch.run_folder import RunFolder, usual_folder

    config = load_run(command.run_file, command.overrides)
    folder = RunFolder(command.out if command.out is not None else usual_folder(command.run_file))
    member = machines.member()
    if member is not None and member.index > 0:
        return take_part(config, folder, command, member, machines.spares)
    spares = machines.spares
    end = train_locally(config, command.ranks, folder, False, worker, grace_seconds, change, spares, member, server)
    if end.outcome is None:
        say_finished(end.state, folder, command)
        return 0
    return conclude(end.outcome, end.state, folder, end.ready.resolved.config, command)
