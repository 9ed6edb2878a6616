"""`fourfold train` on a machine that does not lead: its supervisor follows the one that prepares the run."""

from fourfold.api.training import check_request, write_plain
from fourfold.config import RunConfig
from fourfold.huggingface import resolve_model
from fourfold.launch.external import Member, start_token
from fourfold.launch.machine import num_cuda_devices, transport_of
from fourfold.launch.ready import finished_at
from fourfold.launch.run_folder import RunFolder
from fourfold.launch.shares import all_ranks, check_spares, here_of, threads_of
from fourfold.layout import resolve_layout
from fourfold.report.ending import Command
from fourfold.supervise.follower import follow


def take_part(config: RunConfig, folder: RunFolder, command: Command, member: Member, spares: int) -> int:
    """Starts this machine's ranks as the leader orders, until it says that the run has ended; the exit code."""
    check_request(config, command.ranks)
    check_spares(spares)
    all_ranks(config, command.ranks, member)
    if finished_at(folder, config) is not None:
        return 0
    token = start_token(config, member)

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
    outcome = follow(
        folder,
        member,
        token,
        slots,
        spares,
        lambda ranks: threads_of(config, member, ranks),
        config.faults.stall_limit(transport_of(config, num_cuda_devices(config)) == "native") or seconds,
        seconds,
        write_plain,
        config.checkpoint.memory_every_steps > 0,
    )
    if outcome.message:
        write_plain(f"machine 0 ended the run: {outcome.message}")
    return outcome.exit_code
