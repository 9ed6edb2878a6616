"""Peers of ranks on other machines, and the moves of copies to machines that lack them."""

from fourfold.train.memory_plan import choose, moves
from fourfold.train.peers import Peer, peers
from tests.checkpoint.ranks import layout_of


def test_alone_on_a_machine_a_rank_has_no_peer() -> None:
    assert peers(layout_of(dp_shard=4), [0, 0, 0, 0], ("dp_replicate",)) == [None] * 4


def test_a_peer_is_on_another_machine_and_nobody_keeps_for_two_where_one_is_free() -> None:
    found = peers(layout_of(dp_shard=4), [0, 0, 1, 1], ("dp_replicate",))
    assert found == [Peer(2, False), Peer(3, False), Peer(0, False), Peer(1, False)]


def test_a_replica_on_another_machine_is_the_peer() -> None:
    found = peers(layout_of(dp_replicate=2, dp_shard=2), [0, 0, 1, 1], ("dp_replicate",))
    assert found == [Peer(2, True), Peer(3, True), Peer(0, True), Peer(1, True)]
    inside = peers(layout_of(dp_replicate=2, dp_shard=2), [0, 1, 0, 1], ("dp_replicate",))
    assert not any(peer.is_replica for peer in inside if peer is not None)


def test_a_file_moves_once_to_each_machine_that_lacks_it() -> None:
    missing = [[], [], ["rank-00000.safetensors"], ["rank-00000.safetensors", "rank-00001.safetensors"]]
    holders = {"rank-00000.safetensors": [0], "rank-00001.safetensors": [0]}
    found = moves(missing, [0, 0, 1, 1], holders)
    assert found == [("rank-00000.safetensors", 0, 2), ("rank-00001.safetensors", 1, 3)]


def test_copies_of_ranks_that_were_replaced_are_not_taken() -> None:
    head = '{"step": 9, "fence": 3, "attempt": "3-9", "record": "{}"}'
    assert choose([{"machine": 1, "heads": [[0, 0, head]]}], {"fence": 4, "attempt": "4-7"}) is None
