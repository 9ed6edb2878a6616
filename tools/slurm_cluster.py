"""A Slurm of Debian's packages on one machine: a controller and two nodes, which are daemons on ports of 127.0.0.1."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

NODES = ("n1", "n2")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_PACKAGES = ("slurmctld", "slurmd", "slurm-client")

# No munge, cgroups, accounting or systemd. A lost node is noticed after 10 s, a job that lost it starts again 5 s later.
_CONF = """\
ClusterName=fourfold
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobRequeue=1
ReturnToService=2
SlurmdTimeout=10
KillWait=30
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def install() -> None:
    """Installs what is missing, where this user may; else ends the program with the command that does."""
    if all(map(shutil.which, PROGRAMS)):
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *_PACKAGES]
    if os.geteuid() or not shutil.which("apt-get"):
        raise SystemExit(f"Slurm is not installed; on Debian or Ubuntu, as root: {' '.join(command)}")
    subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


class SlurmCluster:
    """`with SlurmCluster(folder) as slurm`: two idle nodes of `cpus` each; afterwards no process of it is left."""

    def __init__(self, folder: Path, cpus: int) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        port, *ports = _free_ports(1 + len(NODES))
        nodes = [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={own} CPUs={cpus}"
            for name, own in zip(NODES, ports, strict=True)
        ]
        for name in ("state", *(f"spool/{node}" for node in NODES)):
            (folder / name).mkdir(parents=True)
        text = _CONF.format(
            port=port, user=getpass.getuser(), folder=folder, nodes="\n".join(nodes), names=",".join(NODES)
        )
        self.conf.write_text(text)

    def __enter__(self) -> "SlurmCluster":
        try:
            self._start("slurmctld", "slurmctld", "-D", "-c")
            for node in NODES:
                self.start_node(node)
            wait_for(lambda: self.run("sinfo", "-h", "-o", "%T %D") == f"idle {len(NODES)}", "two idle nodes", 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
        for process in self._processes():
            _kill(process)

    def run(self, *words: str) -> str:
        """Standard output of a command of Slurm. Raises `RuntimeError` with its message."""
        done = subprocess.run(words, text=True, capture_output=True, env={**os.environ, "SLURM_CONF": str(self.conf)})
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """`scontrol show job`, as far as its values hold no blank."""
        words = self.run("scontrol", "show", "job", number).split()
        return {key: value for word in words for key, _, value in [word.partition("=")]}

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node)

    def lose_node(self, node: str) -> None:
        """Kills a node's daemon, its steps and their ranks at once, as a power cut does."""
        ranks = list(self._processes(f"SLURMD_NODENAME={node}"))
        steps = {parent for rank in ranks if "slurmstepd" in _command(parent := _parent(rank))}
        self._daemons[node].kill()
        for process in [*steps, *ranks]:
            _kill(process)
        self._daemons.pop(node).wait()

    def kill_task(self, task: int) -> None:
        """Kills one task of the job that runs, with its ranks, as the kernel does where memory is short."""
        for process in self._processes(f"SLURM_PROCID={task}", "SLURM_STEP_ID=0"):
            _kill(process)

    def _start(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as out:
            environment = {**os.environ, "SLURM_CONF": str(self.conf)}
            self._daemons[name] = subprocess.Popen(words, stdout=out, stderr=out, env=environment)

    def _processes(self, *variables: str) -> Iterator[int]:
        """Processes that this cluster started, whose environment has these variables too."""
        wanted = {f"SLURM_CONF={self.conf}", *variables}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                text = (entry / "environ").read_bytes().decode(errors="replace")
                if wanted <= set(text.split("\0")) and int(entry.name) != os.getpid():
                    yield int(entry.name)


def wait_for(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Returns when the condition holds. Raises `RuntimeError` when it does not in time."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(RuntimeError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _command(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    return ""
