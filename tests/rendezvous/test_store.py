"""The store serves the ranks of its run, and whoever does not know the secret changes and learns nothing."""

import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from fourfold.config import RunFailure
from fourfold.rendezvous.connection import FROM_CLIENT, HEAD_BYTES, MAX_FRAME_BYTES, FrameCodec, new_secret, proof
from fourfold.rendezvous.server import HELLO_SECONDS, StoreServer, Strangers, most_strangers
from fourfold.rendezvous.store import SecretStore

SHORT = timedelta(seconds=0.2)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer()
    server.start()
    yield server
    server.close()


def store_of(server: StoreServer, timeout: timedelta = timedelta(seconds=10)) -> SecretStore:
    return SecretStore(server.host, server.port, server.secret, timeout)


def test_it_does_what_torchs_stores_do(server: StoreServer) -> None:
    base, reference = store_of(server), dist.HashStore()
    for store in (dist.PrefixStore("a/b", base), dist.PrefixStore("a/b", reference)):
        store.set("k", b"\x00\xff\n")
        assert store.get("k") == b"\x00\xff\n"
        assert store.check(["k"])
        assert not store.check(["k", "absent"])
        assert [store.add("n", 3), store.add("n", -1)] == [3, 2]
        assert store.compare_set("c", "", "first") == b"first"
        assert store.compare_set("c", "other", "second") == b"first"
        assert store.compare_set("c", "first", "second") == b"second"
        store.append("c", b"+")
        assert store.get("c") == b"second+"
        assert store.multi_get(["k", "n"]) == [b"\x00\xff\n", b"2"]
        store.wait(["k", "n"], timedelta(seconds=1))
        assert store.num_keys() == 3
        assert store.delete_key("k")
        assert not store.delete_key("k")


def test_who_waits_is_answered_when_the_key_comes_and_holds_up_no_other_thread(server: StoreServer) -> None:
    store, found = store_of(server), []
    waiting = threading.Thread(target=lambda: found.append(store.get("late")))
    waiting.start()
    for number in range(20):
        store.set(f"other {number}", "x")
    assert not found
    store_of(server).set("late", "here")
    waiting.join()
    assert found == [b"here"]


def test_what_does_not_come_is_named(server: StoreServer) -> None:
    store = store_of(server, SHORT)
    with pytest.raises(dist.DistStoreError, match=r"nobody set ranks/never in 0\.2 s"):
        dist.PrefixStore("ranks", store).get("never")
    with pytest.raises(dist.DistStoreError, match=r"nobody set never in 0\.1 s"):
        store.wait(["never"], timedelta(seconds=0.1))


def test_a_store_that_is_not_there_yet_is_waited_for(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks may start before the one that serves it."""
    create, refused = socket.create_connection, []

    def late(*arguments: Any, **options: Any) -> socket.socket:
        if len(refused) < 3:
            refused.append(arguments)
            raise ConnectionRefusedError(111, "Connection refused")
        return create(*arguments, **options)

    monkeypatch.setattr("fourfold.rendezvous.connection._RETRY_SECONDS", 0.0)
    monkeypatch.setattr(socket, "create_connection", late)
    store_of(server).set("k", b"v")
    assert len(refused) == 3


def test_a_store_that_is_gone_is_named(server: StoreServer) -> None:
    store = store_of(server)
    server.close()
    with pytest.raises(dist.DistStoreError, match=rf"127\.0\.0\.1:{server.port} is gone"):
        store.set("k", "v")
    with pytest.raises(RunFailure, match=r"was not reached in 0\.2 s"):
        store_of(server, SHORT)


STRANGERS = {
    "nothing": b"",
    "http": b"GET / HTTP/1.0\r\n\r\n" + b"x" * 100,
    "zeros": bytes(4096),
    "noise": os.urandom(100_000),
    "torch": struct.pack("<BI", 7, 0x3C85F7CE) + bytes(64),
}


@pytest.mark.parametrize("text", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_is_not_heard(server: StoreServer, text: bytes) -> None:
    store = store_of(server)
    store.set("k", "v")
    with socket.create_connection((server.host, server.port), timeout=5) as stranger:
        stranger.sendall(text)
        assert len(stranger.recv(1000)) <= 32, "a challenge, and nothing more"
        if text:
            assert is_ended(stranger)
        assert store.get("k") == b"v"
    assert store.num_keys() == 1


def test_who_guesses_the_secret_is_refused(server: StoreServer) -> None:
    with pytest.raises(RunFailure, match="was not reached"):
        SecretStore(server.host, server.port, new_secret(), SHORT)


def test_a_server_that_does_not_know_the_secret_is_refused() -> None:
    """Somebody else listens at the run's address, and pretends to have checked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            connection, _ = listener.accept()
            connection.sendall(bytes(32))
            connection.recv(64)
            connection.sendall(bytes(32))
            connection.close()

        threading.Thread(target=pretend, daemon=True).start()
        with pytest.raises(RunFailure, match="is not the store of this run"):
            SecretStore("127.0.0.1", listener.getsockname()[1], new_secret(), SHORT)


def admitted(server: StoreServer) -> tuple[socket.socket, FrameCodec]:
    """A connection that has proved itself, by hand."""
    connection = socket.create_connection((server.host, server.port), timeout=5)
    challenges = connection.recv(32) + bytes(32)
    connection.sendall(challenges[32:] + proof(server.secret, FROM_CLIENT, challenges))
    assert connection.recv(32)
    return connection, FrameCodec(server.secret, challenges, FROM_CLIENT)


def is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("harm", ["changed", "repeated", "too long", "malformed", "unknown", "no number"])
def test_a_frame_that_is_not_right_ends_its_connection_alone(server: StoreServer, harm: str) -> None:
    store = store_of(server)
    connection, codec = admitted(server)
    frame = codec.encode([b"1", b"set", b"k", b"v"])
    match harm:
        case "changed":
            frame = frame[:-1] + b"w"
        case "repeated":
            connection.sendall(frame)
            assert connection.recv(1000)
        case "too long":
            frame = struct.pack(">I", MAX_FRAME_BYTES + 1) + frame[4:]
        case "malformed":
            frame = codec.encode([b"1", b"set", b"k"])
        case "unknown":
            frame = codec.encode([b"1", b"remove everything"])
        case "no number":
            frame = codec.encode([b"1", b"add", b"k", b"many"])
    connection.sendall(frame)
    assert is_ended(connection)
    assert store.num_keys() == (1 if harm == "repeated" else 0)
    connection.close()


def test_frames_have_the_length_that_their_head_says() -> None:
    codec = FrameCodec(b"secret", b"challenges", FROM_CLIENT)
    frame = codec.encode([b"set", b"", b"v" * 1000])
    assert codec.body_bytes(frame[:HEAD_BYTES]) == len(frame) - HEAD_BYTES


def test_it_listens_where_it_is_told_and_nowhere_else(server: StoreServer) -> None:
    assert [listener.getsockname()[0] for listener in server._sockets] == ["127.0.0.1"]
    with socket.socket() as elsewhere:  # the same port, of another address of this machine, is free
        elsewhere.bind(("127.0.0.2", server.port))
    taken = StoreServer(port=server.port)
    assert taken.port != server.port
    taken.close()
    with pytest.raises(RunFailure, match=r"192\.0\.2\.1: the run's ranks cannot meet .* MASTER_ADDR"):
        StoreServer(["192.0.2.1"])


@pytest.fixture
def crowded() -> Iterator[StoreServer]:
    """A server whose line of strangers is short."""
    server = StoreServer()
    server._strangers = Strangers(most=8)
    server.start()
    yield server
    server.close()


def stranger_of(server: StoreServer, address: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of this machine that has read its challenge, and says nothing."""
    stranger = socket.create_connection((server.host, server.port), timeout=20, source_address=(address, 0))
    assert len(stranger.recv(32)) == 32
    return stranger


def is_open(connection: socket.socket) -> bool:
    """Whether the server keeps it: nothing has come that says otherwise."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_a_rank_comes_in_at_its_first_try_however_many_strangers_wait(
    crowded: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store_of(crowded)
    before.set("k", "v")
    strangers = [stranger_of(crowded) for _ in range(3 * 8)]
    monkeypatch.setattr("fourfold.rendezvous.connection.time.sleep", lambda _: pytest.fail("it had to try again"))
    assert store_of(crowded).get("k") == b"v"
    assert before.get("k") == b"v", "a rank that has proved itself keeps its connection"
    found = [is_open(each) for each in strangers]
    assert sum(found) == 7, "the line is as long as it may be, and the rank that came last was in it"
    assert found == sorted(found), "the oldest were closed"
    assert len(crowded._strangers) == 7
    for each in strangers:
        each.close()


def test_strangers_of_one_address_cost_no_other_its_place(crowded: StoreServer) -> None:
    """Also one that is slow to prove itself."""
    store, slow = store_of(crowded), stranger_of(crowded)
    strangers = [stranger_of(crowded, "127.0.0.2") for _ in range(20)]
    assert not store.check(["k"])  # the server has done all that came before
    assert is_open(slow)
    assert sum(map(is_open, strangers)) == 7
    for each in (slow, *strangers):
        each.close()


def test_the_line_is_a_part_of_what_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepting fails for a second where a process can open nothing more."""
    for limit, most in ((64, 16), (1024, 256), (1 << 20, 1024), (resource.RLIM_INFINITY, 1024)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert most_strangers() == most


def test_a_stranger_that_says_nothing_is_closed(crowded: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourfold.rendezvous.server.HELLO_SECONDS", 0.0)
    with stranger_of(crowded) as stranger:
        assert is_ended(stranger)
    assert HELLO_SECONDS <= 5
