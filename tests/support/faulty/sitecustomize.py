"""Faults inside a rank, for ranks that are started with this folder on PYTHONPATH.

FOURFOLD_TEST_FAULT = WHAT:RANK:STEP:TIMES, where the first TIMES times that RANK comes to STEP it does WHAT; the counter is a file
in the folder FOURFOLD_TEST_COUNTER. `device:NUMBER:::` is a device that does not work while the file `broken` is there.
With in_turn, every STEP steps something else hangs, on each of RANK ranks in turn.
"""

import ctypes
import errno
import os
import resource
import signal
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

what, rank, step, times = (os.environ.get("FOURFOLD_TEST_FAULT") or ":::").split(":")


def due(at: int, *kinds: str) -> str:
    """The one of the kinds that this rank does at this step; empty: none."""
    kind, victim, when, counter = what, rank, int(step or 0), f"{what}-{rank}"
    if what == "in_turn":
        number = at // when - 1
        kind, victim, when = IN_TURN[number % 4], str(number // 4 % int(rank)), (number + 1) * when or -1
        counter = f"{kind}-{victim}-{at}"
    if at < 0 or kind not in kinds or os.environ.get("RANK") != victim or at != when:
        return ""
    with open(Path(os.environ["FOURFOLD_TEST_COUNTER"]) / counter, "a+b") as file:
        file.write(f"{time.time():.3f}\n".encode())
        file.seek(0)
        return kind if len(file.readlines()) <= int(times) else ""


def fail(kind: str) -> None:
    match kind:
        case "exit":
            sys.exit(0)
        case "leave":
            os._exit(0)
        case "leave3":
            os._exit(3)
        case "thread3":
            threading.Thread(target=os._exit, args=(3,)).start()
            time.sleep(1e6)
        case "error":
            raise KeyError("a defect in the data reader")
        case "sleep":
            time.sleep(1e6)
        case "loop":
            while True:
                pass
        case "gil":  # waits for a lock that it holds itself, and no other thread of Python's runs meanwhile
            mutex, library = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
            while True:
                library.pthread_mutex_lock(mutex)
        case "allocator":
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried\nmore"
            )
        case "memory":
            _ = bytearray(b"\1") * (256 << 20)
        case "starve":  # no thread can start any more, and Python waits for ever for one that does not
            resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
        case "disk":
            fail_every_sync()
        case "sockets":
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                        os.close(int(name))
        case "fifo":
            path = Path(os.environ["FOURFOLD_TEST_COUNTER"]) / "fifo"
            path.unlink(missing_ok=True)
            os.mkfifo(path)
            path.read_bytes()


_FSYNC = {"x86_64": (74, 0xC000003E), "aarch64": (82, 0xC00000B7)}
"""By machine: the number of the system call, and the kernel's name of the architecture."""


def fail_every_sync() -> None:
    """From now on the kernel answers every fsync of this thread, and of threads that it starts, with EIO, as a bad disk does."""
    number, architecture = _FSYNC[os.uname().machine]
    program = b"".join(
        struct.pack("HBBI", *each)
        for each in (
            (0x20, 0, 0, 4),  # load the architecture
            (0x15, 0, 2, architecture),
            (0x20, 0, 0, 0),  # load the number of the call
            (0x15, 1, 0, number),
            (0x06, 0, 0, 0x7FFF0000),  # allow
            (0x06, 0, 0, 0x00050000 | errno.EIO),  # answer with this error
        )
    )
    code = ctypes.create_string_buffer(program)
    table = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    library = ctypes.CDLL(None, use_errno=True)
    for option, *values in (
        (38, 1, 0),
        (22, 2, ctypes.addressof(table)),
    ):  # no new privileges; a filter of system calls
        if library.prctl(option, *map(ctypes.c_ulong, values), 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


IN_TURN = ("skip", "loop", "sleep", "stop")


def install() -> None:
    from fourfold.runtime.compute import SegmentRunner
    from fourfold.runtime.executor import Executor
    from fourfold.runtime.memory_file import MemoryFile
    from fourfold.train import session
    from fourfold.train.batches_ahead import BatchesAhead

    take, clip, backward, run = BatchesAhead.take, Executor._clip_norm, SegmentRunner.backward, Executor.run
    here, choose = [-1], session.choose_device

    def choose_device(section, *claim):
        broken = what == "device" and (Path(os.environ["FOURFOLD_TEST_COUNTER"]) / "broken").exists()
        if broken and os.environ.get("LOCAL_RANK") == rank:
            raise RuntimeError(f"device {rank} does not answer")
        return choose(section, *claim)

    def taken(self, at):
        here[0] = at
        if what == "slow" and os.environ.get("RANK") == rank:
            time.sleep(0.05)
        elif what == "crawl" and os.environ.get("RANK") == rank and crawls(at):
            time.sleep(0.1)
        elif kind := due(
            at,
            "exit",
            "leave",
            "leave3",
            "thread3",
            "error",
            "sleep",
            "gil",
            "fifo",
            "memory",
            "allocator",
            "disk",
            "sockets",
            "starve",
        ):
            fail(kind)
        elif due(at, "stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return take(self, at)

    def clip_norm(self, instruction):
        if due(here[0], "loop"):
            fail("loop")
        if due(here[0], "skip"):
            self._norm, self.scale = 1.0, 1.0
            return
        clip(self, instruction)

    def spoilt_backward(self, instruction):
        backward(self, instruction)
        if instruction.short == "B b1 m0" and due(here[0], "gradient", "nan"):
            spoil(self._units["b1"].grad, what == "nan")

    def spoilt_run(self, program, *rest):
        if program.kind == "train" and due(here[0], "parameter", "state"):
            unit = self.units["b1"]
            spoil(unit.params if what == "parameter" else unit.optimizer.state["exp_avg"], False)
        return run(self, program, *rest)

    BatchesAhead.take, Executor._clip_norm, SegmentRunner.backward = taken, clip_norm, spoilt_backward
    Executor.run, session.choose_device = spoilt_run, choose_device
    commit = MemoryFile.commit

    def killed_commit(self, own, version, head):
        if due(here[0], "copy"):
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self, own, version, head)

    MemoryFile.commit = killed_commit


began: list[float] = []


def crawls(at: int) -> bool:
    """Whether this is within 20 s of the step at which a rank becomes slow."""
    if at == int(step):
        began.append(time.monotonic())
    return bool(began) and time.monotonic() - began[0] < 20


def spoil(tensor, to_nan: bool) -> None:
    """Flips one bit of the fourth element, or makes it NaN."""
    import torch

    if to_nan:
        tensor[3] = torch.nan
    else:
        tensor[3:4].view(torch.int32).bitwise_xor_(1 << 20)


if what and "fourfold.train.fork_server" in sys.orig_argv:
    install()
