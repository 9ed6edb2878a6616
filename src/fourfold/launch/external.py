"""Supervisors on several machines: which of them this process is, as flags, torchrun, Slurm or Kubernetes say.

`fourfold train` runs once on each machine, or once for each rank where the launcher starts a process a rank. Each of these
supervisors starts and watches its own ranks; the first leads.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fourfold.config import RunConfig, UserError, dump_run
from fourfold.rendezvous.addresses import loopback, loopback_interface

_BASE_PORT, _LAST_PORT = 20000, 65535


@dataclass(frozen=True)
class Member:
    """This supervisor among `count` of them. `index` 0 leads; one from `count` on is a spare machine. `slots`: ranks that it may
    start; None: as many as `--ranks` or the layout says. `local_index`, `local_count`: among those on this machine. `is_alone`: all
    are, and the launcher says so. `cpus`: this member's own, where the launcher says so. `launch` names that launch as far as it
    tells. `is_restarted`: whether the launcher starts all again where one ends, so that nobody need wait for a lost one."""

    index: int
    count: int
    slots: int | None
    local_index: int
    local_count: int
    is_alone: bool
    cpus: int | None
    master_address: str
    master_port: int
    launch: str
    is_restarted: bool = False

    def __str__(self) -> str:
        return f"{'machine' if self.slots is None else 'rank'} {self.index}"

    def environment(self) -> dict[str, str]:
        """The variables by which this member's ranks find the others."""
        own = loopback_interface() if self.is_alone else {}
        return {**own, "MASTER_ADDR": loopback() if self.is_alone else self.master_address}


def member_of(environment: Mapping[str, str], nodes: int | None = None, node_rank: int | None = None) -> Member | None:
    """Reads the member from flags and NODE_RANK, NNODES, torchrun (RANK, WORLD_SIZE) or Slurm (SLURM_PROCID, SLURM_NTASKS); None
    where this machine is the only one. RANK and WORLD_SIZE count machines, as the pods of a PyTorchJob, where nothing says which
    rank of its machine a process is.

    A batch script of Slurm is not one of its tasks, nor is a task that is alone. Tasks of Slurm are as many machines where NNODES
    says that there are as many. Raises `UserError` for malformed values.
    """
    if nodes is None and _is_told(environment, _RANKS) and any(environment.get(key) for key in _OF_A_RANK):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        here, cpus = _number(environment, "LOCAL_WORLD_SIZE", 0), 0
        launch = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    elif nodes is None and _is_slurm_task(environment) and not _is_one_a_node(environment):
        tasks = _tasks(environment)
        if environment.get(tasks, "1") == "1":
            return None
        names = ("SLURM_PROCID", tasks, "SLURM_LOCALID")
        here, cpus = _tasks_on_node(environment), _number(environment, "SLURM_CPUS_PER_TASK", 0)
        launch = (*_SLURM_LAUNCH, "")
    else:
        return _of_machines(environment, nodes, node_rank)
    index, count = _index_and_count(environment, names[0], names[1])
    return Member(
        index=index,
        count=count,
        slots=1,
        local_index=_number(environment, names[2], index % (here or count)),
        local_count=here or count,
        is_alone=here == count,
        cpus=cpus or None,
        master_address=environment.get("MASTER_ADDR") or _first_host(environment),
        master_port=_port(environment),
        launch=_values(environment, launch),
        is_restarted=True,
    )


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is alone: without the variables in which launchers tell a process its place."""
    return {key: value for key, value in environment.items() if not key.startswith(_OF_LAUNCHERS)}


def _index_and_count(environment: Mapping[str, str], *names: str) -> tuple[int, int]:
    index, count = (_number(environment, name) for name in names)
    if index >= count:
        raise UserError(f"{names[0]} = {index} in the environment must be below {names[1]} = {count}")
    return index, count


def _is_told(environment: Mapping[str, str], names: Sequence[str]) -> bool:
    return all(name in environment for name in names)


_RANKS = ("RANK", "WORLD_SIZE")
_OF_A_RANK = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
"""Variables of launchers that start a process for each rank."""
_OF_LAUNCHERS = (
    "JOB_COMPLETION_INDEX",
    "LOCAL_",
    "MASTER_",
    "NNODES",
    "NODE_RANK",
    "PET_",
    "RANK",
    "SLURM_",
    "TORCHELASTIC_",
    "WORLD_SIZE",
)
"""Beginnings of all variables that this file reads."""
_COUNTS = ("NNODES", "PET_NNODES")
_INDICES = ("NODE_RANK", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "SLURM_NODEID")
_SLURM_LAUNCH = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")


def _of_machines(environment: Mapping[str, str], nodes: int | None, node_rank: int | None) -> Member | None:
    """A supervisor for all ranks of its machine."""
    counts = [key for key in _COUNTS if environment.get(key)]
    indices = [key for key in _INDICES if environment.get(key)]
    if nodes is None and counts and indices:
        nodes = _number(environment, counts[0])
    elif nodes is None and node_rank is None and _is_told(environment, _RANKS):
        node_rank, nodes = _index_and_count(environment, *_RANKS)
        if nodes == 1:
            return None
    if nodes is None:
        if node_rank is not None:
            raise UserError(f"--node-rank {node_rank} without --nodes; a value that works: --nodes 2")
        return None
    if node_rank is None and indices:
        node_rank = _number(environment, indices[0])
    if node_rank is None or nodes < 1 or node_rank < 0:
        raise UserError(
            f"--nodes {nodes} --node-rank {'missing' if node_rank is None else node_rank}: allowed: 1 machine or more, and 0 for "
            f"the one that leads; a value that works: --nodes 2 --node-rank 0 (or NODE_RANK in the environment)"
        )
    address = environment.get("MASTER_ADDR") or environment.get("PET_MASTER_ADDR") or ""
    if not address and "SLURM_NODEID" in environment:
        address = _first_host(environment)
    if not address:
        raise UserError(
            "--nodes needs the address of the machine with --node-rank 0; what works: --master ADDRESS:29500, or MASTER_ADDR and "
            "MASTER_PORT in the environment"
        )
    return Member(
        index=node_rank,
        count=nodes,
        slots=None,
        local_index=0,
        local_count=1,
        is_alone=False,
        cpus=None,
        master_address=address,
        master_port=_port(environment),
        launch=f"machines/{_values(environment, _SLURM_LAUNCH)}",
        is_restarted="SLURM_STEP_ID" in environment,  # Slurm ends a job that lost a node
    )


def _values(environment: Mapping[str, str], names: Sequence[str]) -> str:
    return "/".join(environment.get(name, "") for name in names)


def with_master(environment: Mapping[str, str], master: str | None) -> dict[str, str]:
    """The environment with the address of `--master HOST:PORT` in it. Raises `UserError`."""
    if master is None:
        return dict(environment)
    host, colon, port = master.rpartition(":")
    if not colon or not host:
        raise UserError(f"--master {master}: allowed: HOST:PORT; a value that works: --master 10.0.0.1:29500")
    return {**environment, "MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port}


def _port(environment: Mapping[str, str]) -> int:
    told = "MASTER_PORT" if environment.get("MASTER_PORT") else "PET_MASTER_PORT"
    port = _number(environment, told, _BASE_PORT + _number(environment, "SLURM_JOB_ID", 0) % 20000)
    if port > _LAST_PORT:
        raise UserError(f"{told} = {port} in the environment: allowed: 0 to {_LAST_PORT}; a value that works: 29500")
    return port


def _is_slurm_task(environment: Mapping[str, str]) -> bool:
    return "SLURM_PROCID" in environment and not ("SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment)


def _tasks(environment: Mapping[str, str]) -> str:
    """The variable that counts the tasks of this step of Slurm."""
    return "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"


def _is_one_a_node(environment: Mapping[str, str]) -> bool:
    told = next((environment[key] for key in _COUNTS if environment.get(key)), None)
    return told is not None and told == environment.get(_tasks(environment), "1")


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
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", match[0]) if match else loopback()


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


def start_token(config: RunConfig, member: Member, part: int = 0) -> str:
    """Hash shared by all members of one launch of one run; another run, size or (where it is told) launch has another, and so has
    each stage that the launch comes to, of which `part` counts those before."""
    told = f"{member.launch}\n{member.count}\n{dump_run(config)}{f'{chr(10)}{part}' if part else ''}"
    return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()[:16]
