"""The leader's processor time a second, by the number of machines that follow it, and what it takes to let all their ranks in.

The leader is real: store, fleet, watch and judge of a launch whose ranks all train. The machines are simulated by processes of
their own, which send what a follower sends: a report a second of every rank's place, and a request that waits for the next order.

    python benchmarks/followers.py                  # 64, 512 and 2,048 machines of 8 ranks, 10 s each
    python benchmarks/followers.py 4096 --ranks 4
"""

import argparse
import asyncio
import multiprocessing as mp
import os
import resource
import secrets
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from fourfold.config import parse_run
from fourfold.config.errors import raise_file_limit
from fourfold.launch.kept_files import KeptFiles
from fourfold.launch.processes import LocalRanks
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.connection import FROM_CLIENT, HEAD_BYTES, FrameCodec, challenge, proof
from fourfold.rendezvous.server import StoreServer
from fourfold.runtime.progress import TRAINING, Position
from fourfold.supervise.fleet import Fleet
from fourfold.supervise.generation import Generation
from fourfold.supervise.judge import Judge
from fourfold.supervise.messages import JOINED, ORDER, REPORT, Report, order_key, report_key, report_seconds
from fourfold.supervise.observation import Observation
from fourfold.supervise.remote import RemoteRanks
from fourfold.supervise.watch import Watch

STEP_SECONDS, PROCESSES = 3.0, 2
NUMBER, COUNTER, STEP = 700_000_001, 700_000_002, 700_000_003
"""Numbers that stand for these in the text of a report, so that a simulated machine costs little."""


class Line:
    """A connection that has proved itself."""

    async def open(self, port: int, secret: bytes) -> "Line":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        theirs, ours = await self.reader.readexactly(32), challenge()
        self.writer.write(ours + proof(secret, FROM_CLIENT, theirs + ours))
        await self.reader.readexactly(32)
        self.codec, self.sent = FrameCodec(secret, theirs + ours, FROM_CLIENT), 0
        return self

    def send(self, *fields: bytes) -> None:
        self.sent += 1
        self.writer.write(self.codec.encode([b"%d" % self.sent, *fields]))

    async def receive(self) -> list[bytes]:
        head = await self.reader.readexactly(HEAD_BYTES)
        return self.codec.decode(head, await self.reader.readexactly(self.codec.body_bytes(head)))


async def follow(machine: int, num_ranks: int, place: tuple[int, bytes], limit: float, few: asyncio.Semaphore) -> None:
    """One machine: joins the store at `place`, obeys every order at once, and reports."""
    async with few:
        line = await Line().open(*place)
    line.send(b"append", JOINED.encode(), b"%d," % machine)
    await line.receive()
    report = Report(0, secrets.token_hex(8), f"node-{machine}", tuple(range(num_ranks)), (), is_ready=True)
    order = b""
    line.send(b"changed", b"1000", order_key(machine).encode(), order)
    number, begun = 0, time.time()
    at = time.monotonic() + machine * 0.618 % 1.0  # not all at once
    pending = None
    text = REPORT.dump_json(replace(report, number=NUMBER))
    while True:
        number, now = number + 1, time.time()
        told = text.replace(b"%d" % NUMBER, b"%d" % number).replace(b"%d" % COUNTER, b"%d" % (int(now * 100) % 300))
        told = told.replace(b"%d" % STEP, b"%d" % int((now - begun) / STEP_SECONDS))
        line.send(b"set", report_key(machine).encode(), told)
        at = max(at + report_seconds(limit), time.monotonic())
        while (left := at - time.monotonic()) > 0:
            pending = pending or asyncio.ensure_future(line.receive())
            done, _ = await asyncio.wait([pending], timeout=left)
            if done:
                answer, pending = pending.result(), None
                if len(answer) > 2:
                    order = answer[2]
                    seen_at = Observation(Position(STEP, COUNTER, now, 1.0, TRAINING, 1000), "S", 1.0)
                    seen = {machine * num_ranks + rank - num_ranks: seen_at for rank in range(num_ranks)}
                    obeyed = ORDER.validate_json(order).number
                    text = REPORT.dump_json(replace(report, number=NUMBER, obeyed=obeyed, seen=seen))
                    line.send(b"changed", b"1000", order_key(machine).encode(), order)
                    break  # and says so at once


def machines(numbers: range, num_ranks: int, port: int, secret: bytes, limit: float) -> None:
    raise_file_limit()

    async def all_of_them() -> None:
        few = asyncio.Semaphore(64)  # the server closes strangers that wait in too long a line
        each = [follow(m, num_ranks, (port, secret), limit, few) for m in numbers]
        await asyncio.gather(*each)

    asyncio.run(all_of_them())


def ranks(count: int, port: int, secret: bytes, told: "mp.connection.Connection") -> None:
    """The connections of so many ranks, opened when `told` says so, which then wait for the word to stop."""
    raise_file_limit()
    told.recv()

    async def all_of_them() -> None:
        lines = []
        for begin in range(0, count, 256):
            lines += await asyncio.gather(*(Line().open(port, secret) for _ in range(begin, min(count, begin + 256))))
        for line in lines:
            line.send(b"wait", b"1000", b"words/stop_requested")
        told.send(len(lines))
        await asyncio.sleep(3600)

    asyncio.run(all_of_them())


class Over(Exception):
    """The seconds of the measurement are."""


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(count: int, num_ranks: int, seconds: float) -> dict[str, float]:
    """Processor seconds a second of the leader of `count` machines, and those that their ranks' connections took."""
    faults = parse_run({"batch": {"global_sequences": 1, "sequence_length": 1}}).faults
    server = StoreServer()
    fleet = Fleet((), (), server, count + 1, faults.stall_seconds)
    spread = [range(1 + part, count + 1, PROCESSES) for part in range(PROCESSES)]
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    others = [
        context.Process(
            target=machines, args=(part, num_ranks, server.port, server.secret, faults.stall_seconds), daemon=True
        )
        for part in spread
    ]
    joined = min(count * num_ranks, raise_file_limit() - count - 100)
    joining_ranks = context.Process(target=ranks, args=(joined, server.port, server.secret, there), daemon=True)
    joining_ranks.start()
    server.start()
    before = processor_seconds()
    here.send("join")
    while not here.poll(0.02):
        pass
    joining = processor_seconds() - before
    for process in others:
        process.start()
    while len(fleet.usable()) < count * num_ranks:
        fleet.poll()
        time.sleep(0.02)
    with tempfile.TemporaryDirectory() as out:
        Path(out, "run.toml").write_text("")
        folder = RunFolder(Path(out))
        blame = SimpleNamespace(work=lambda number: [1.0] * number)
        watch = Watch(faults, 600.0, blame)  # type: ignore[arg-type]
        until = [0.0]

        def tick() -> None:
            if until[0] and time.monotonic() > until[0]:
                raise Over

        judge = Judge(folder, [], faults, lambda: 0, watch, tick, print, 10.0, fleet, KeptFiles(folder))
        local = LocalRanks(folder, None)  # type: ignore[arg-type]
        told = [
            RemoteRanks(
                fleet.machines[m], {(m - 1) * num_ranks + r: r for r in range(num_ranks)}, count * num_ranks, 0, 1
            )
            for m in range(1, count + 1)
        ]
        generation = Generation(folder.path, fleet.usable(), local, told)
        while any(part.machine.report is None or part.machine.report.obeyed < 1 for part in told):
            fleet.poll()
            time.sleep(0.02)
        begun, before = time.monotonic(), processor_seconds()
        until[0] = begun + seconds
        places = SimpleNamespace(could_grow=lambda newest: False, judge=lambda *_: False)
        with suppress(Over):
            judge.watch(generation, 0, places)  # type: ignore[arg-type]
        passed = time.monotonic() - begun
        busy = (processor_seconds() - before) / passed
        silent = max(machine.silent for machine in fleet.machines.values())
    for process in (*others, joining_ranks):
        process.kill()
        process.join()
    server.close()
    return {"busy": busy, "silent": silent, "joined": joined, "joining": joining, "failures": len(generation.failures)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="*", type=int, default=[64, 512, 2048])
    parser.add_argument("--ranks", type=int, default=8, help="of each machine")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores; a report of {given.ranks} ranks a machine and second", flush=True)
    for count in given.machines:
        found = measure(count, given.ranks, given.seconds)
        print(
            f"{count:6,} machines: leader {found['busy']:.3f} s of a core a second, longest silence {found['silent']:.2f} s, "
            f"{found['failures']} failures; {found['joined']:,} ranks joined in {found['joining']:.2f} s of a core",
            flush=True,
        )


if __name__ == "__main__":
    main()
