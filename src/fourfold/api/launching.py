"""The launch of a run by its command: on the machine that leads or on another, and the end of it, in words and as an exit code."""

from dataclasses import replace
from itertools import count

from fourfold.api.inputs import MachineOptions
from fourfold.api.training import check_request, how_it_stopped, train_locally, write_plain, write_report
from fourfold.config import RunConfig, load_run
from fourfold.huggingface import resolve_model
from fourfold.launch.branch import with_branch
from fourfold.launch.copied import fetch_from_copies
from fourfold.launch.external import Member, start_token
from fourfold.launch.machine import num_cuda_devices, transport_of
from fourfold.launch.ready import finished_at, with_decay
from fourfold.launch.run_folder import RunFolder, usual_folder
from fourfold.launch.shares import all_ranks, check_spares, here_of, threads_of
from fourfold.layout import resolve_layout
from fourfold.report.ending import Command, final_lines
from fourfold.report.run_state import RunState
from fourfold.supervise.follower import follow
from fourfold.supervise.signals import LaunchOutcome
from fourfold.supervise.supervisor import GOES_ON
from fourfold.train.fork_server import Started

GRACE_SECONDS = 10.0


def train_with(
    command: Command,
    worker: tuple[str, ...] | None = None,
    grace_seconds: float = GRACE_SECONDS,
    change: bool = False,
    machines: MachineOptions | None = None,
    server: Started | None = None,
    decay: int | None = None,
    allow_other_code: bool = False,
    start: str | None = None,
) -> int:
    """Trains as the command says; its exit code. `worker`: a program that stands in for a rank, which has `grace_seconds` to
    end once another failed. `server`: what forks ranks, started before. `start`: as of --from. Raises `UserError` and
    `RunFailure`."""
    machines = machines or MachineOptions()
    config = load_run(command.run_file, command.overrides)
    folder = RunFolder(command.out if command.out is not None else usual_folder(command.run_file))
    member, spares = machines.member(), machines.spares
    if member is None or member.index == 0:
        fetch_from_copies(config, folder)
    if start is not None:
        config = with_branch(config, folder, start)
        command = replace(
            command, overrides=(*command.overrides, f"checkpoint.start_from={config.checkpoint.start_from}")
        )
    config = with_decay(config, folder, decay)
    if member is not None and member.index > 0:
        return take_part(config, folder, command, member, spares)
    asked = change, spares, member, server, allow_other_code
    end = train_locally(config, command.ranks, folder, False, worker, grace_seconds, *asked)
    if end.outcome is None:
        say_finished(end.state, folder, command)
        return 0
    return conclude(end.outcome, end.state, folder, end.ready.staged.config, command)


def take_part(config: RunConfig, folder: RunFolder, command: Command, member: Member, spares: int) -> int:
    """Starts this machine's ranks as the leader orders, until it says that the run has ended; the exit code. Raises
    `UserError`."""
    check_request(config, command.ranks)
    check_spares(spares)
    all_ranks(config, command.ranks, member)
    if finished_at(folder, config) is not None:
        return 0

    def slots() -> int:
        """Ranks that this machine starts: as told, one a CUDA device, or its share of the layout that the leader wrote."""
        stated = member.slots if member.slots is not None else command.ranks
        if stated is None and config.layout.dp_shard is None:
            stated = num_cuda_devices(config) or None
        if stated is not None:
            return stated
        written = folder.require_config(trust=True)
        return here_of(resolve_layout(written, resolve_model(written.model)).world_size, member)

    seconds = config.run.timeout_seconds
    for part in count():
        outcome = follow(
            folder,
            member,
            start_token(config, member, part),
            slots,
            spares,
            lambda ranks: threads_of(config, member, ranks),
            config.faults.stall_limit(transport_of(config, num_cuda_devices(config)) == "native") or seconds,
            seconds,
            write_plain,
            config.checkpoint.memory_every_steps > 0,
        )
        if outcome.exit_code or outcome.message != GOES_ON:
            break
    if outcome.message:
        write_plain(f"machine 0 ended the run: {outcome.message}")
    return outcome.exit_code


def say_finished(state: RunState, folder: RunFolder, command: Command) -> None:
    """Lines of a repeated command about a run that has nothing left to do."""
    state.refresh()
    write_plain(
        f"{folder.path}: this run finished at step {state.step}; to go on, ask for more steps: "
        f"{command.line(f'batch.steps={2 * state.info.num_steps}')}"
    )
    write_plain("\n".join(["", *final_lines(state, command, write_report(folder))]))


def conclude(outcome: LaunchOutcome, state: RunState, folder: RunFolder, config: RunConfig, command: Command) -> int:
    """Prints how the run ended; the exit code. Raises `UserError` or `RunFailure` with the message of a rank that failed."""
    if outcome.exit_code == 0:
        state.refresh()
        write_plain("\n".join(["", *final_lines(state, command, write_report(folder))]))
    else:
        write_plain(how_it_stopped(outcome, state, folder, config, command))
    return outcome.exit_code
