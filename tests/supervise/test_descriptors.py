"""A supervisor and its ranks have no more open while they train than `check_files` asks for at the start."""

import os
from pathlib import Path

import pytest

from fourfold.config.errors import group_files
from fourfold.launch.machine import _RANK_FILES, _SUPERVISOR_FILES
from tests.support.supervised import Supervised, write_run

STEPS = 100_000
CHANGES = ("checkpoint.every_steps=50000", "run.evaluate_every=50000")


def opened(pid: int) -> list[str]:
    """The names of all that a process has open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:  # closed meanwhile
            continue
    return found


def soft_and_hard(pid: int) -> list[str]:
    line = next(x for x in Path(f"/proc/{pid}/limits").read_text().splitlines() if x.startswith("Max open files"))
    return line.split()[3:5]


def sockets(names: list[str]) -> int:
    return sum(name.startswith("socket:") for name in names)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[list[str], list[str], set[tuple[str, ...]]]]:
    """By the number of ranks, in mid-run: what the supervisor has open, what rank 0 has, and the limits of all processes."""
    found = {}
    for ranks in (1, 3):
        folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
        limit = ["prlimit", "--nofile=256:", "--"]  # the soft limit alone
        with Supervised(write_run(folder, STEPS), folder / "run", *CHANGES, ranks=ranks, prefix=limit) as run:
            run.wait_for_step(3)
            pids = (run.process.pid, *run.pids)
            limits = {tuple(soft_and_hard(pid)) for pid in pids}
            found[ranks] = opened(run.process.pid), opened(run.pids[0]), limits
    return found


def test_the_supervisor_holds_one_connection_of_every_rank(held) -> None:
    assert sockets(held[3][0]) - sockets(held[1][0]) == 2
    for ranks, (supervisor, _, _) in held.items():
        assert len(supervisor) <= _SUPERVISOR_FILES + ranks, supervisor


def test_a_rank_holds_one_connection_to_the_store_and_those_of_its_groups(held) -> None:
    for ranks, (_, rank, _) in held.items():
        assert len(rank) <= _RANK_FILES + group_files(ranks), rank
    more = sockets(held[3][1]) - sockets(held[1][1])
    assert more <= 2 + 2 * 2, "the others, and those of the groups that are not of all ranks"


def test_every_process_may_open_what_the_administrator_allows(held) -> None:
    for _, _, limits in held.values():
        ((soft, hard),) = limits
        assert soft == str(min(int(hard), 1 << 20)) != "256"
