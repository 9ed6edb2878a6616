"""A process has one connection to the store for all its threads, its generation's keys alone, and a limit that is told."""

import os
import re
import resource
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fourfold.rendezvous.server import StoreServer
from fourfold.rendezvous.store import SecretStore
from fourfold.rendezvous.values import Reply, Values
from tests.rendezvous.test_store import SHORT, server, store_of

__all__ = ["server"]


def test_all_threads_of_a_process_share_one_connection(server: StoreServer) -> None:
    """Also those that wait, and those that torch starts and ends for every look."""
    store = store_of(server)
    threads = [threading.Thread(target=lambda number=number: store.get(f"late {number}")) for number in range(20)]
    for thread in threads:
        thread.start()
    for number in range(20):
        assert store.add("n", 1) == number + 1
        once = threading.Thread(target=lambda: store.check(["n"]))
        once.start()
        once.join()
    assert len(server._values.connections) == 1
    for number in range(20):
        store.set(f"late {number}", "here")
    for thread in threads:
        thread.join()


def test_many_keys_are_one_request(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL reads an id for every 128 ranks so."""
    store, asked = store_of(server), []
    answer = Values.answer

    def recorded(values: Values, request: Sequence[bytes], reply: Reply) -> None:
        asked.append(request[0])
        answer(values, request, reply)

    for number in range(128):
        store.set(f"a/b/{number}", str(number))
    monkeypatch.setattr(Values, "answer", recorded)
    prefixed = dist.PrefixStore("b", dist.PrefixStore("a", store))
    assert prefixed.multi_get([str(number) for number in range(128)]) == [b"%d" % n for n in range(128)]
    assert asked == [b"get"]


def test_no_key_of_a_generation_is_seen_by_another_whatever_prefix_torch_takes_off(server: StoreServer) -> None:
    """NCCL's groups write these beneath all prefixes: a generation that saw them would dump and end at once."""
    former, later = (
        SecretStore(server.host, server.port, server.secret, SHORT, f"generation {number}/") for number in (1, 11)
    )
    beneath = [
        dist.PrefixStore("0//", dist.PrefixStore("collectives", s))._underlying_non_prefix_store
        for s in (former, later)
    ]
    assert beneath == [former, later]
    for key in ("exception_dump", "remote_error"):
        beneath[0].set(key, b"\x05\x00\x00\x00")
        assert beneath[0].check([key])
        assert not beneath[1].check([key])
        with pytest.raises(dist.DistStoreError, match=f"nobody set {key} in"):
            beneath[1].get(key)
        assert not beneath[1].delete_key(key)
        assert beneath[1].compare_set(key, "", "mine") == b"mine"
        assert beneath[0].get(key) == b"\x05\x00\x00\x00"
    assert beneath[1].add("n", 1) == beneath[0].add("n", 1) == 1
    assert (beneath[0].num_keys(), beneath[1].num_keys()) == (3, 3)


def test_every_key_that_torch_knows_beneath_its_prefixes_is_in_the_law_above() -> None:
    """Read from torch's own header, so that one that a later torch adds is seen."""
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    keys = re.findall(r'constexpr const char\* kStore\w+Key = "(\w+)";', header.read_text())
    assert keys == ["exception_dump", "remote_error"]


def test_a_key_that_is_awaited_costs_one_request_and_who_hears_of_it_says_so(server: StoreServer) -> None:
    store, other = store_of(server), store_of(server)
    look = store.awaited("word", "heard")
    assert not any(look() for _ in range(100))
    assert other.add("heard", 0) == 0
    other.set("word", "now")
    while not look():
        pass
    while other.add("heard", 0) == 0:
        pass
    assert other.add("heard", 0) == 1
    gone = store.awaited("never", "heard")
    server.close()
    with pytest.raises(dist.DistStoreError, match="is gone: connection lost"):
        any(gone() for _ in iter(int, 1))


def test_the_limit_of_open_files_at_the_server_is_told_once_it_is_met(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop itself tries again in silence, and the rank that waits knows nothing of it."""
    monkeypatch.setattr("asyncio.selector_events.constants.ACCEPT_RETRY_DELAY", 0.01)
    store = store_of(server)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waits = socket.socket()
    full = max(map(int, os.listdir("/proc/self/fd"))) + 1
    fill = [os.dup(0) for _ in range(full - len(os.listdir("/proc/self/fd")))]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (full, hard))
        waits.connect((server.host, server.port))
        while not server.refusal:
            store.set("k", "v")  # who is connected is served meanwhile
        assert "has 1 connections and accepts no other (Too many open files)" in server.refusal
        assert f"a process may open {full} files and sockets here; what works: ulimit -n 65536" in server.refusal
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in fill:
            os.close(descriptor)
    waits.settimeout(20)
    assert len(waits.recv(32)) == 32, "it comes in where files are closed again"
    waits.close()
