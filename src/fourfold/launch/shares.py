"""The share of one machine in a run: how many of all ranks it starts, with how many threads, beside how many spare devices."""

import os

from fourfold.config import RunConfig, UserError
from fourfold.launch.external import Member
from fourfold.launch.machine import threads_per_rank


def check_spares(spares: int) -> None:
    """Raises `UserError` for a number of spare ranks that no machine has."""
    if not 0 <= spares <= 1024:
        raise UserError(f"--spares {spares}: allowed: 0 to 1024; a value that works: --spares 1")


def all_ranks(config: RunConfig, ranks: int | None, member: Member | None) -> int | None:
    """The ranks of the run. `ranks`: those of one machine, as `--ranks` says; None: the layout says how many there are."""
    if member is None:
        return ranks
    if member.slots is None:
        return ranks * member.count if ranks is not None else None
    if ranks is not None and ranks != member.count * member.slots:
        raise UserError(
            f"--ranks {ranks}: the environment says that {member.count * member.slots} ranks were started; leave --ranks out"
        )
    return member.count * member.slots


def here_of(ranks: int, member: Member | None) -> int:
    """How many of all ranks this machine starts. Raises `UserError` where the machines would not start equally many."""
    if member is None:
        return ranks
    if ranks % member.count:
        raise UserError(
            f"{ranks} ranks on {member.count} machines: each starts as many; what works: --ranks "
            f"{-(-ranks // member.count)} on each, with a layout of {-(-ranks // member.count) * member.count} ranks"
        )
    return ranks // member.count


def first_slot(member: Member | None) -> int:
    """The number of the first slot of this supervisor: that of its rank on the machine, where each rank has a supervisor."""
    return member.local_index if member is not None and member.slots is not None else 0


def threads_of(config: RunConfig, member: Member | None, ranks: int) -> int:
    """Threads of each of this supervisor's ranks: as the launcher says, `run.threads_per_rank`, or an equal share of the cores."""
    if member is not None and member.slots is not None:
        told = os.environ.get("OMP_NUM_THREADS", "")
        if told.isdecimal() and int(told):
            return int(told)
        return member.cpus or threads_per_rank(config, member.local_count)
    return threads_per_rank(config, ranks)
