"""A rank as its machine's supervisor sees it: where it is, and what the kernel says of its process."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fourfold.runtime.progress import NOWHERE, Position, read_positions


@dataclass(frozen=True)
class Observation:
    """One rank. `state`: its process's letter in /proc; empty where there is none. `processor_seconds`: those that it used.
    `is_fresh`: whether this is how it stands now; False where its machine has said nothing for a while."""

    position: Position = NOWHERE
    state: str = ""
    processor_seconds: float = 0.0
    is_fresh: bool = True


def observe(folder: Path, machine: int, pids: Mapping[int, int]) -> dict[int, Observation]:
    """The ranks of this machine, whose number is `machine`, by rank. `pids`: their processes."""
    positions = read_positions(folder, machine)
    return {
        rank: Observation(
            positions[rank] if rank < len(positions) else NOWHERE, process_state(pid), processor_seconds(pid)
        )
        for rank, pid in pids.items()
    }


def is_stopped(state: str) -> bool:
    """Whether a process in this state goes on only when another continues it: after SIGSTOP, or under a debugger."""
    return state in ("T", "t")


def process_state(pid: int) -> str:
    """The letter of /proc: R runs, S sleeps, D waits for a device, T is stopped; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def processor_seconds(pid: int) -> float:
    """Processor time of all threads of a process; 0 where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0
