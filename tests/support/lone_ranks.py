"""Two ranks of a world whose other ranks are simulated: what each of the two asks the store, and holds, for that world's size.

The ranks are processes that join, make their groups, agree, meet beside training, exchange copies and step, as a rank of a run on
CUDA devices does. NCCL is left out: torch's `fake` backend stands in for it, whose collectives do nothing. The others are simulated
where their requests would be counted: the server takes a barrier's counter for one to which all of them have come.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fourfold.rendezvous.server import StoreServer
from fourfold.rendezvous.values import Reply, Values
from tests.support.forking import forking_context

REAL = (0, 1)
SAVES, BARRIERS, COPIES, STEPS = 3, 5, 3, 50
_COUNTER = re.compile(rb".*/words/(save|memory)/\d+$")


@contextmanager
def simulated_peers(server: StoreServer, world_size: int) -> Iterator[Counter[str]]:
    """Requests of the real ranks, by name, while all others of the world come to every barrier at once."""
    asked = Counter[str]()
    answer = Values.answer

    def answered(values: Values, request: Sequence[bytes], reply: Reply) -> None:
        asked[request[0].decode()] += 1
        if request[0] == b"add" and _COUNTER.fullmatch(request[1]) and not values.get(request[1]):
            values.set(request[1], b"%d" % (world_size - len(REAL)))
        answer(values, request, reply)

    with patch.object(Values, "answer", answered):
        server.start()
        yield asked


def measured(world_size: int) -> dict[str, Any]:
    """Requests, sockets and threads of both ranks together, in a world of so many."""
    server = StoreServer()
    with simulated_peers(server, world_size) as asked:
        pipes, processes = [], []
        for rank in REAL:
            here, there = forking_context().Pipe()
            told = {**server.environment(), "RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}
            process = forking_context().Process(target=_rank, args=(there, told), daemon=True)
            process.start()
            pipes.append(here)
            processes.append(process)
        found = [pipe.recv() if pipe.poll(100) else "no answer" for pipe in pipes]
        keys = [key.decode() for key in server._values._values]
        for process in processes:
            process.kill()
            process.join()
    server.close()
    return {"requests": dict(asked), "ranks": found, "keys": keys}


def _rank(pipe: Pipe, environment: dict[str, str]) -> None:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend)

    os.environ.update(environment)
    torch.set_num_threads(1)
    before = _held()
    init, new_group = dist.init_process_group, dist.new_group

    def no_device(*given: Any, **options: Any) -> Any:
        return new_group(*given, **{**options, "device_id": None})

    with (
        patch.object(dist, "init_process_group", lambda backend, **options: init("fake", **options)),
        patch.object(dist, "new_group", no_device),
        patch("fourfold.train.session.require_group_files", lambda size: None),
    ):
        try:
            _join_and_train(int(environment["WORLD_SIZE"]))
            after = _held()
            pipe.send({name: after[name] - before[name] for name in after})
        except BaseException as error:
            pipe.send(repr(error))
    pipe.poll(100)


def _join_and_train(world_size: int) -> None:
    import torch

    from fourfold.config import parse_run
    from fourfold.program import rank_view
    from fourfold.runtime.collectives import make_groups
    from fourfold.runtime.parallel import groups_of
    from fourfold.runtime.routers import Routers
    from fourfold.runtime.units import build_units
    from fourfold.train import state
    from fourfold.train.memory_transfer import MemoryTransfer
    from fourfold.train.saver import Saver
    from fourfold.train.session import StopSignal, init_rank_context
    from tests.support.programs import DIMENSIONS, make_spec

    table = {"run": {"device": "cpu", "timeout_seconds": 60}, "checkpoint": {"every_steps": 1}}
    config = parse_run({"model": DIMENSIONS, "batch": {"global_sequences": 1, "sequence_length": 20}, **table})
    context = init_rank_context(config.run)
    spec = make_spec(tp=2, dp_shard=8, dp_replicate=world_size // 16, zero=3, transport="native")
    with (
        patch("torch.distributed.get_backend", lambda: "nccl"),
        patch.object(torch.cuda, "current_device", lambda: 0),
    ):
        make_groups(spec.layout, context.rank, groups_of(spec), 60)
    context.agree("program of pp 0", "digest", 0)
    view = rank_view(spec)
    units = build_units(view, context.rank, config.optimizer, context.device, state.no_fill)
    routers = Routers(view, [], context.device)
    saver = Saver(config, Path("unused"), view, units, routers, context.rank, context.barrier("save"))
    with patch.object(state, "save", lambda *given, **_: [given[8]() for _ in range(BARRIERS)]):
        for step in range(SAVES):
            saver.begin(step, {})
        saver.wait()
    assert [end.error for end in saver.ended()] == [None] * SAVES
    transfer = MemoryTransfer(_Memory(), context, 60)  # type: ignore[arg-type]
    transfer.connect([(rank, rank + 1) for rank in range(0, world_size, 2)])
    for _ in range(COPIES):
        transfer.exchange(1 - context.rank, ((context.rank, 0), 100), [1 - context.rank], [(1 - context.rank, 0)])
        transfer.meet()
    stop = StopSignal(context)
    assert not any(stop.stops_before(step) for step in range(STEPS))


class _Memory:
    """A memory file that holds one region of zeros."""

    descriptor = os.open("/dev/zero", os.O_RDONLY)

    def head(self, rank: int, version: int) -> str:
        return "{}"

    def data_start(self, rank: int, version: int) -> int:
        return 0

    def begin(self, rank: int, version: int) -> None: ...

    def write(self, data: bytes, place: int) -> None: ...

    def commit(self, rank: int, version: int, head: str) -> None: ...


def _held() -> dict[str, int]:
    links = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            links.append(os.readlink(entry.path))
        except OSError:
            continue
    return {"sockets": sum(link.startswith("socket:") for link in links), "threads": len(os.listdir("/proc/self/task"))}
