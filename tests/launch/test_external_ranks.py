"""Supervisors that torchrun, Slurm, Kubernetes or a person start: how each reads its environment."""

import re
from pathlib import Path

import pytest

from fourfold.config import RunConfig, UserError, parse_run
from fourfold.launch import external
from fourfold.launch.external import member_of, start_token, with_master
from fourfold.launch.shares import all_ranks, here_of

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


def test_a_process_without_its_launcher_is_alone() -> None:
    """No variable that is read stays; all others do."""
    read = set(re.findall(r'"([A-Z][A-Z_]*[A-Z])"', Path(external.__file__).read_text()))
    assert {"RANK", "PET_NNODES", "NODE_RANK", "SLURM_STEP_TASKS_PER_NODE"} <= read
    others = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2"}
    assert external.without_launcher({**dict.fromkeys(read, "1"), **others}) == others
    for environment in (TORCHRUN, SLURM, {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "node1"}):
        assert member_of(environment) is not None
        assert member_of(external.without_launcher(environment)) is None


def run() -> RunConfig:
    return parse_run({"batch": {"global_sequences": 8, "sequence_length": 16, "steps": 5}})


def test_torchrun_is_read() -> None:
    rank = member_of(TORCHRUN)
    assert rank is not None
    assert (rank.index, rank.count, rank.local_index, rank.local_count) == (3, 8, 1, 2)
    assert rank.slots == 1
    assert rank.environment()["MASTER_ADDR"] == "node1"


def test_slurm_is_read_and_names_its_first_node() -> None:
    rank = member_of(SLURM)
    assert rank is not None
    assert (rank.index, rank.count, rank.local_index) == (5, 8, 1)
    assert rank.master_address == "gpu07"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[07-09,12],login", "gpu07"), ("a1,b2", "a1"), ("r[1-2]n[03,07]-ib,x", "r1n03-ib"), ("", "127.0.0.1")],
)
def test_the_first_of_slurms_nodes_is_found(nodes: str, first: str) -> None:
    rank = member_of({**SLURM, "SLURM_JOB_NODELIST": nodes})
    assert rank is not None
    assert rank.master_address == first


@pytest.mark.parametrize(
    ("told", "node", "local"), [("4(x2)", "1", 4), ("4(x2),3", "2", 3), ("5,3", "1", 3), ("", "0", 8), ("x", "0", 8)]
)
def test_slurms_ranks_on_a_node_are_counted(told: str, node: str, local: int) -> None:
    rank = member_of({**SLURM, "SLURM_STEP_TASKS_PER_NODE": told, "SLURM_NODEID": node})
    assert rank is not None
    assert rank.local_count == local


def test_slurm_tells_the_cpus_of_a_rank() -> None:
    told, untold = member_of({**SLURM, "SLURM_CPUS_PER_TASK": "6"}), member_of(SLURM)
    assert told is not None
    assert untold is not None
    assert (told.cpus, untold.cpus) == (6, None)
    torchrun = member_of({**TORCHRUN, "SLURM_CPUS_PER_TASK": "6"})  # of all ranks of torchrun's node together
    assert torchrun is not None
    assert torchrun.cpus is None


def test_torchrun_goes_before_the_slurm_job_it_runs_in() -> None:
    rank = member_of({**SLURM, **TORCHRUN})
    assert rank is not None
    assert rank.index == 3


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
    assert member_of(environment) is None


@pytest.mark.parametrize(
    "change", [{"RANK": "x"}, {"RANK": "8"}, {"WORLD_SIZE": "-1"}, {"MASTER_PORT": "http"}, {"MASTER_PORT": "99999"}]
)
def test_malformed_variables_are_named(change: dict[str, str]) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        member_of({**TORCHRUN, **change})


def test_the_start_token_is_common_to_a_launch_and_changes_with_the_run() -> None:
    first, other = member_of({**TORCHRUN, "RANK": "0"}), member_of(TORCHRUN)
    assert first is not None
    assert other is not None
    assert start_token(run(), first) == start_token(run(), other)
    restarted = member_of({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert restarted is not None
    assert start_token(run(), restarted) != start_token(run(), first)


MACHINES = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29511"}


@pytest.mark.parametrize(
    "environment",
    [
        MACHINES,
        {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "29511"},
        {**MACHINES, "NODE_RANK": "", "JOB_COMPLETION_INDEX": "1"},
        {
            **MACHINES,
            "NODE_RANK": "",
            "MASTER_ADDR": "",
            "SLURM_NODEID": "1",
            "SLURM_JOB_NODELIST": "10.0.0.1,10.0.0.2",
        },
    ],
)
def test_machines_are_read(environment: dict[str, str]) -> None:
    member = member_of(environment)
    assert member is not None
    assert (member.index, member.count, member.slots, member.master_address) == (1, 2, None, "10.0.0.1")
    assert member.master_port == 29511


PODS = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29511"}


def test_a_pytorchjob_counts_pods_each_of_which_starts_its_own_ranks() -> None:
    pod = member_of(PODS)
    assert pod is not None
    assert (pod.index, pod.count, pod.slots, pod.local_index) == (1, 2, None, 0)
    assert (pod.master_address, pod.master_port) == ("10.0.0.1", 29511)
    assert all_ranks(run(), 2, pod) == 4
    assert here_of(4, pod) == 2


def test_a_pytorchjob_of_one_pod_is_one_machine() -> None:
    assert member_of({**PODS, "RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize("key", ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"])
def test_a_launcher_of_ranks_says_which_one_of_its_machine_each_is(key: str) -> None:
    rank = member_of({**PODS, key: "1"})
    assert rank is not None
    assert (rank.index, rank.count, rank.slots) == (1, 2, 1)


@pytest.mark.parametrize(
    "changes", [{"NNODES": "4", "NODE_RANK": "3"}, {"PET_NNODES": "4", "PET_NODE_RANK": "3"}], ids=str
)
def test_numbers_of_machines_go_before_those_of_pods(changes: dict[str, str]) -> None:
    member = member_of({**PODS, **changes})
    assert member is not None
    assert (member.index, member.count) == (3, 4)


@pytest.mark.parametrize("change", [{"RANK": "x"}, {"RANK": "2"}, {"WORLD_SIZE": "0"}, {"WORLD_SIZE": "2 "}], ids=str)
def test_malformed_numbers_of_pods_are_named(change: dict[str, str]) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        member_of({**PODS, **change})


def test_flags_go_before_the_environment() -> None:
    told = with_master({**TORCHRUN, **MACHINES}, "[::1]:300")
    member = member_of(told, nodes=3, node_rank=0)
    assert member is not None
    assert (member.index, member.count, member.master_address, member.master_port) == (0, 3, "::1", 300)
    spare = member_of(told, nodes=3, node_rank=3)
    assert spare is not None
    assert spare.index == spare.count, "a machine from number --nodes on is spare"


@pytest.mark.parametrize(
    ("nodes", "node_rank", "environment", "words"),
    [
        (None, 1, {}, "--node-rank 1 without --nodes"),
        (2, None, {"MASTER_ADDR": "a"}, "--node-rank missing"),
        (0, 0, {"MASTER_ADDR": "a"}, "--nodes 0"),
        (2, -1, {"MASTER_ADDR": "a"}, "--node-rank -1"),
        (2, 1, {}, "--master ADDRESS"),
        (2, 1, {"MASTER_ADDR": "a", "MASTER_PORT": "x"}, "MASTER_PORT"),
    ],
)
def test_flags_that_do_not_fit_are_named(nodes, node_rank, environment, words) -> None:
    with pytest.raises(UserError, match=words):
        member_of(environment, nodes, node_rank)


@pytest.mark.parametrize("master", ["", "10.0.0.1", ":29500"])
def test_an_address_without_a_port_is_named(master: str) -> None:
    with pytest.raises(UserError, match="--master"):
        with_master({}, master)
