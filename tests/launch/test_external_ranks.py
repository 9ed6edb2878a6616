"""Ranks that torchrun and Slurm start: how each reads its environment, and how they wait for the first."""

import pytest

from fourfold.config import RunConfig, RunFailure, UserError, parse_run
from fourfold.launch.external import external_rank, start_token, wait_for_start
from fourfold.launch.run_folder import RunFolder

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "a",
}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_NODELIST": "gpu[07-09,12],login"}


def run() -> RunConfig:
    return parse_run({"batch": {"global_sequences": 8, "sequence_length": 16, "steps": 5}})


def test_torchrun_is_read() -> None:
    rank = external_rank(TORCHRUN)
    assert rank is not None
    assert (rank.rank, rank.world_size, rank.local_rank, rank.local_ranks) == (3, 8, 1, 2)
    assert rank.environment()["MASTER_ADDR"] == "node1"


def test_slurm_is_read_and_names_its_first_node() -> None:
    rank = external_rank(SLURM)
    assert rank is not None
    assert (rank.rank, rank.world_size, rank.local_rank) == (5, 8, 1)
    assert rank.master_address == "gpu07"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[07-09,12],login", "gpu07"), ("a1,b2", "a1"), ("r[1-2]n[03,07]-ib,x", "r1n03-ib"), ("", "127.0.0.1")],
)
def test_the_first_of_slurms_nodes_is_found(nodes: str, first: str) -> None:
    rank = external_rank({**SLURM, "SLURM_JOB_NODELIST": nodes})
    assert rank is not None
    assert rank.master_address == first


@pytest.mark.parametrize(
    ("told", "node", "local"), [("4(x2)", "1", 4), ("4(x2),3", "2", 3), ("5,3", "1", 3), ("", "0", 8), ("x", "0", 8)]
)
def test_slurms_ranks_on_a_node_are_counted(told: str, node: str, local: int) -> None:
    rank = external_rank({**SLURM, "SLURM_STEP_TASKS_PER_NODE": told, "SLURM_NODEID": node})
    assert rank is not None
    assert rank.local_ranks == local


def test_slurm_tells_the_cpus_of_a_rank() -> None:
    told, untold = external_rank({**SLURM, "SLURM_CPUS_PER_TASK": "6"}), external_rank(SLURM)
    assert told is not None
    assert untold is not None
    assert (told.cpus, untold.cpus) == (6, None)
    torchrun = external_rank({**TORCHRUN, "SLURM_CPUS_PER_TASK": "6"})  # of all ranks of torchrun's node together
    assert torchrun is not None
    assert torchrun.cpus is None


def test_torchrun_goes_before_the_slurm_job_it_runs_in() -> None:
    rank = external_rank({**SLURM, **TORCHRUN})
    assert rank is not None
    assert rank.rank == 3


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},  # the batch script itself
    ],
)
def test_a_process_that_nobody_started_as_a_rank_is_none(environment: dict[str, str]) -> None:
    assert external_rank(environment) is None


@pytest.mark.parametrize(
    "change", [{"RANK": "x"}, {"RANK": "8"}, {"WORLD_SIZE": "-1"}, {"MASTER_PORT": "http"}, {"MASTER_PORT": "99999"}]
)
def test_malformed_variables_are_named(change: dict[str, str]) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        external_rank({**TORCHRUN, **change})


def test_the_start_token_is_common_to_a_launch_and_changes_with_the_run() -> None:
    first, other = external_rank({**TORCHRUN, "RANK": "0"}), external_rank(TORCHRUN)
    assert first is not None
    assert other is not None
    assert start_token(run(), first) == start_token(run(), other)
    restarted = external_rank({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert restarted is not None
    assert start_token(run(), restarted) != start_token(run(), first)


def test_waiting_ends_with_the_token_and_only_with_it(tmp_path) -> None:
    folder = RunFolder(tmp_path / "out")
    with pytest.raises(RunFailure, match="rank 1 waited"):
        wait_for_start(folder, "now", 1, 0.05)
    folder.write(run(), {"prepared": "x", "start": "earlier"})
    with pytest.raises(RunFailure, match="timeout_seconds"):
        wait_for_start(folder, "now", 1, 0.05)
    folder.write(run(), {"prepared": "x", "start": "now"})
    wait_for_start(folder, "now", 1, 0.05)
