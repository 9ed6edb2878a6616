"""A run on one machine opens no port to others, and strangers on this one do it no harm."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from fourfold.train.session import StopSignal, _step_near
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, make_run, wait_for_step

__all__ = ["corpus"]
RANKS = 2


def listening(pid: int) -> list[tuple[str, int]]:
    """(address, port) of every socket on which a process listens, by the kernel's tables."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in sockets:
                address, port = words[1].split(":")
                found.append((address, int(port, 16)))
    return found


@pytest.mark.rest
def test_every_port_of_a_run_is_on_loopback_and_bears_noise(tmp_path: Path, corpus: Path) -> None:
    out = make_run(tmp_path / "run", corpus, batch={"steps": 200}, checkpoint={"every_steps": 100})
    ranks = start_training(out, RANKS)
    wait_for_step(out, 2)
    ports = {place for pid in (os.getpid(), *(rank.pid for rank in ranks)) for place in listening(pid)}
    assert len(ports) > RANKS
    ended = threading.Event()

    def disturb() -> None:
        for _ in range(100):  # gloo keeps what it accepted: a flood would take all of a rank's descriptors
            if ended.is_set():
                return
            for _, port in ports:
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
                        stranger.sendall(os.urandom(200))
                except OSError:
                    continue

    thread = threading.Thread(target=disturb)
    thread.start()
    codes, errors = finish(ranks)
    ended.set()
    thread.join()
    assert codes == [0] * RANKS, errors
    assert {address for address, _ in ports} == {"0100007F"}


@pytest.mark.parametrize("text", [b"garbage", b"", b"\xff\xfe", b"-1", b"6", b"12", b"9" * 5000, b"8.0", b"nan"])
def test_a_step_to_stop_at_that_cannot_be_is_passed_over(text: bytes) -> None:
    assert _step_near(7, text) is None


class OneRank:
    world_size, rank = 2, 0

    def __init__(self) -> None:
        self.store = dist.HashStore()

    def awaited(self, key: str, heard: str) -> Callable[[], bool]:
        """The two ranks hear of the key at once."""

        def look() -> bool:
            self.store.set(heard, "2")
            return self.store.check([key])

        return look


def test_rank_0_names_the_step_again_where_the_word_was_garbage() -> None:
    context = OneRank()
    stop = StopSignal(context)  # type: ignore[arg-type]
    stop.requested = True
    assert not stop.stops_before(4)
    assert stop._asked is not None
    assert stop._asked.result() == 7
    context.store.set("stop_at", "garbage")
    fresh = StopSignal(context)  # type: ignore[arg-type]
    assert [fresh.stops_before(step) for step in (5, 6, 7, 8)] == [False, False, False, True]
