"""A process that has imported all that a rank needs, and forks ranks: the next one starts in milliseconds, not seconds.

    python -m fourfold.train.fork_server DESCRIPTOR

It has one thread and no process group, so that its forks are sound. It knows of no run until it forks a rank, so that it can import
while a run is prepared. DESCRIPTOR is a `SOCK_SEQPACKET` socket; each message is a JSON object:

    -> {}, with the descriptor of a log                                       write there from now on
    -> {"out": "runs/a", "environment": {...}}, with the descriptor of a log  fork a rank of the run in that folder; a second
                                                                              descriptor is that of its memory file
    <- {"ready": true}                                                        once everything is imported
    <- {"pid": 17}                                                            it runs
    <- {"pid": 17, "exit_code": -9}                                           it ended; negative for a signal

When the socket closes, or the launcher dies, all ranks are killed.
"""

import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

from fourfold.config.errors import raise_file_limit
from fourfold.runtime.allocator import for_ranks
from fourfold.runtime.memory_file import DESCRIPTOR

MESSAGE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_LATE = ("encodings.idna", "numpy.ma", "numpy.random", "pydantic.dataclasses", "xxhash")
"""Modules that others import at their first use, in every rank again."""


Started = tuple[subprocess.Popen[bytes], socket.socket]
"""A server's process and the launcher's end of its socket."""


def start_server(log: IO[bytes] | int = subprocess.DEVNULL) -> Started:
    """Starts a server, which writes to `log`. It imports with one thread; each rank then takes as many as it is given."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "fourfold.train.fork_server", str(theirs.fileno())],
            env={**for_ranks(os.environ), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
            preexec_fn=die_with_parent,
        )
    return process, ours


def end_server(started: Started) -> None:
    """Ends a server, and so its ranks; again, nothing."""
    process, connection = started
    process.kill()
    process.wait()
    connection.close()


def serve(connection: socket.socket) -> None:
    """Forks ranks as it is asked, and says how they end, until the connection closes."""
    raise_file_limit()
    gc.disable()  # a collection during imports looks at all that stays, again and again
    import fourfold.train.loop
    import fourfold.train.session
    import fourfold.train.worker  # noqa: F401

    for module in _LATE:
        import_module(module)
    children: set[int] = set()
    ended, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher passes them on to the ranks
    gc.freeze()  # pages of what is imported stay shared: no collection touches them
    gc.enable()
    poll = select.poll()  # unlike select, takes descriptors above 1023
    poll.register(connection.fileno(), select.POLLIN)
    poll.register(ended, select.POLLIN)
    _say(connection, {"ready": True})
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if ended in ready:
            os.read(ended, 4096)
            while children and (found := os.waitpid(-1, os.WNOHANG))[0]:
                children.discard(found[0])
                _say(connection, {"pid": found[0], "exit_code": os.waitstatus_to_exitcode(found[1])})
        if connection.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 2)
            if not message:
                break
            order = json.loads(message)
            if not order:
                os.dup2(descriptors[0], 1)
                os.dup2(descriptors[0], 2)
                os.close(descriptors[0])
                continue
            pid = os.fork()
            if pid == 0:
                connection.close()
                memory = {DESCRIPTOR: str(descriptors[1])} if len(descriptors) > 1 else {}
                _run_rank(Path(order["out"]), {**order["environment"], **memory}, descriptors[0])
            for descriptor in descriptors:
                os.close(descriptor)
            children.add(pid)
            _say(connection, {"pid": pid})
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _say(connection: socket.socket, message: dict[str, object]) -> None:
    connection.send(json.dumps(message).encode())


def _run_rank(out: Path, environment: dict[str, str], log: int) -> NoReturn:
    """The forked process, which never returns into the server's loop."""
    code = 1
    try:
        server = os.getppid()
        die_with_parent()
        if os.getppid() != server:
            os._exit(1)
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(environment, FOURFOLD_PARENT=str(server))
        import torch

        from fourfold.train.worker import run_worker, try_device

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
        code = try_device(out) if "FOURFOLD_TRIAL" in environment else run_worker(out)
    except BaseException:  # what a process of its own would print
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # all that lasts is written; threads of the communication library do not always end in order


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends, however that ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
