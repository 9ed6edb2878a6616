"""Supervisors of other machines find the store through a file that only their user can read."""

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fourfold.config import RunFailure, parse_run
from fourfold.launch.external import Member, member_of, start_token
from fourfold.launch.rendezvous_file import announced, find_store, listening_hosts, open_store
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.server import StoreServer
from fourfold.supervise.follower import follow
from tests.launch.test_external_ranks import SLURM, TORCHRUN

ALONE = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "0"}


def rank_of(environment: dict[str, str]) -> Member:
    rank = member_of(environment)
    assert rank is not None
    return rank


def test_the_file_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    folder, server = RunFolder(tmp_path), StoreServer()
    with announced(folder, server, "this"):
        (file,) = tmp_path.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert find_store(folder, "this") == (server.port, server.secret)
        assert len(server.secret) == 32
        assert find_store(folder, "another launch") is None
    assert not list(tmp_path.iterdir())
    server.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        json.dumps({"start": "this"}),
        json.dumps({"start": "this", "port": "1", "secret": "0" * 64}),
        json.dumps({"start": "this", "port": 1, "secret": "no digits"}),
    ],
)
def test_a_file_that_is_none_is_waited_for(tmp_path: Path, text: str) -> None:
    (tmp_path / ".rendezvous").write_text(text)
    assert find_store(RunFolder(tmp_path), "this") is None


def test_ranks_that_are_all_here_meet_on_loopback() -> None:
    assert listening_hosts(rank_of(ALONE)) == ["127.0.0.1"]
    environment = rank_of(ALONE).environment()
    assert environment["MASTER_ADDR"] == "127.0.0.1"
    assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize("environment", [TORCHRUN, {**SLURM, "MASTER_ADDR": "192.0.2.7"}])
def test_ranks_elsewhere_meet_at_the_address_given(environment: dict[str, str]) -> None:
    rank = rank_of(environment)
    assert listening_hosts(rank)[0] == environment["MASTER_ADDR"]
    assert "GLOO_SOCKET_IFNAME" not in rank.environment()


@pytest.mark.parametrize("address", ["192.0.2.1", "no.such.host.invalid", "x" * 300, "\udcff"])
def test_an_address_that_is_not_this_machines(address: str) -> None:
    rank = replace(rank_of(TORCHRUN), master_address=address)
    assert start_token(parse_run({"batch": {"global_sequences": 8, "sequence_length": 16, "steps": 5}}), rank)
    with pytest.raises(RunFailure, match="MASTER_ADDR"):
        open_store(rank)


def test_a_machine_to_which_nobody_says_where_the_store_is_ends_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(RunFailure, match=r"rank 3 waited 0 s for number 0.*start all as one user.*run.timeout_seconds"):
        follow(RunFolder(tmp_path), rank_of(TORCHRUN), "now", lambda: 1, 0, lambda ranks: 1, 5.0, 0.05, print)
