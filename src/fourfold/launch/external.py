"""Ranks that somebody else starts: under torchrun or Slurm, `fourfold train` is itself one of the ranks."""

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from fourfold.config import RunConfig, RunFailure, UserError, dump_run
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.server import LOOPBACK, loopback_interface

_BASE_PORT, _LAST_PORT = 20000, 65535
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ExternalRank:
    """This process among the ranks that another launcher started. `local_ranks`: those on this machine; `is_alone`: all are, and
    the launcher says so. `cpus`: this rank's own, where the launcher says so. `launch` names that launch as far as it tells."""

    rank: int
    world_size: int
    local_rank: int
    local_ranks: int
    is_alone: bool
    cpus: int | None
    master_address: str
    master_port: int
    launch: str

    def environment(self) -> dict[str, str]:
        """The variables that a worker reads."""
        own = loopback_interface() if self.is_alone else {}
        return {
            **own,
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": LOOPBACK if self.is_alone else self.master_address,
            "MASTER_PORT": str(self.master_port),
        }


def external_rank(environment: Mapping[str, str]) -> ExternalRank | None:
    """Reads the rank from torchrun (RANK, WORLD_SIZE) or Slurm (SLURM_PROCID, SLURM_NTASKS); None where neither started us.

    A batch script of Slurm is not one of its tasks, nor is a task that is alone. Raises `UserError` for malformed values.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        on_this_machine, cpus = _number(environment, "LOCAL_WORLD_SIZE", 0), 0
        launch = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    elif "SLURM_PROCID" in environment and not ("SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment):
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
        if environment.get(tasks, "1") == "1":
            return None
        names = ("SLURM_PROCID", tasks, "SLURM_LOCALID")
        on_this_machine, cpus = _tasks_on_node(environment), _number(environment, "SLURM_CPUS_PER_TASK", 0)
        launch = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "")
    else:
        return None
    rank, world_size = _number(environment, names[0]), _number(environment, names[1])
    if rank >= world_size:
        raise UserError(f"{names[0]} = {rank} in the environment must be below {names[1]} = {world_size}")
    port = _number(environment, "MASTER_PORT", _BASE_PORT + _number(environment, "SLURM_JOB_ID", 0) % 20000)
    if port > _LAST_PORT:
        raise UserError(
            f"MASTER_PORT = {port} in the environment: allowed: 0 to {_LAST_PORT}; a value that works: 29500"
        )
    local_ranks = on_this_machine or world_size
    return ExternalRank(
        rank=rank,
        world_size=world_size,
        local_rank=_number(environment, names[2], rank % local_ranks),
        local_ranks=local_ranks,
        is_alone=on_this_machine == world_size,
        cpus=cpus or None,
        master_address=environment.get("MASTER_ADDR") or _first_host(environment),
        master_port=port,
        launch="/".join(environment.get(name, "") for name in launch),
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UserError(
            f"{name} = {text!r} in the environment is not a number; unset it, or let torchrun or srun set it"
        )
    return int(text)


def _first_host(environment: Mapping[str, str]) -> str:
    """The node of Slurm's task 0: `gpu[07-09,12]-ib,login` -> `gpu07-ib`."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
    match = re.match(r"(?:[^\[,]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", match[0]) if match else "127.0.0.1"


def _tasks_on_node(environment: Mapping[str, str]) -> int:
    """Slurm's tasks on this node; 0 where it does not say. `8(x2),4` is 8 on the first two nodes and 4 on the third."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    each = [
        int(match[1])
        for part in text.split(",")
        if (match := re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part))
        for _ in range(int(match[2] or 1))
    ]
    node = _number(environment, "SLURM_NODEID", 0)
    return each[node] if node < len(each) else 0


def start_token(config: RunConfig, external: ExternalRank) -> str:
    """The same on every rank of one launch of one run; another for another run, size or (where it is told) launch."""
    told = f"{external.launch}\n{external.world_size}\n{dump_run(config)}"
    return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()[:16]


def wait_for_start(folder: RunFolder, token: str, rank: int, timeout_seconds: float) -> None:
    """Returns when rank 0 has written the run's folder for this launch; `rank` is the one that waits.

    Raises `RunFailure` when it does not in time.
    """
    deadline = time.monotonic() + timeout_seconds
    while folder.data().get("start") != token:
        if time.monotonic() > deadline:
            raise RunFailure(
                f"{folder.data_file}: rank {rank} waited {timeout_seconds:.0f} s for rank 0 to write it; "
                f"see what rank 0 says, put --out on a disk that all nodes share, or raise run.timeout_seconds"
            )
        time.sleep(_POLL_SECONDS)
