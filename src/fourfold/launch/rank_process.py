"""Two ways to a rank's process: a command of its own, or a fork of a server that has imported everything."""

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Protocol

from fourfold.config import RunFailure
from fourfold.launch.failures import log_tail
from fourfold.launch.run_folder import RunFolder
from fourfold.runtime.allocator import for_ranks
from fourfold.train.fork_server import MESSAGE_BYTES, Started, die_with_parent, end_server, start_server

_ANSWER_SECONDS = 30.0
_LOOK_SECONDS = 1.0


class RankProcess(Protocol):
    """One rank's process. `poll`: its exit code, negative for a signal, or None while it lives."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


class Spawner(Protocol):
    """Starts ranks. `ready`: whether `spawn` would start one at once. Both raise `RunFailure` and `OSError`. `exit_code`: of the
    process that its ranks end with, where that has ended itself."""

    @property
    def exit_code(self) -> int | None: ...

    def ready(self) -> bool: ...

    def spawn(self, environment: Mapping[str, str], log: IO[bytes]) -> RankProcess: ...

    def close(self) -> None: ...


class CommandSpawner:
    """Runs `command OUT` for each rank. Each leads a session of its own, so that a terminal's Ctrl-C reaches the launcher alone."""

    def __init__(self, command: Sequence[str], folder: RunFolder) -> None:
        self._command = [*command, str(folder.path)]
        self.exit_code = None

    def ready(self) -> bool:
        return True

    def spawn(self, environment: Mapping[str, str], log: IO[bytes]) -> RankProcess:
        return subprocess.Popen(
            self._command,
            env={**for_ranks(os.environ), **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def close(self) -> None:
        pass


class ForkServer:
    """The launcher's side of `fourfold.train.fork_server`, which it starts, and starts again where it died."""

    def __init__(self, folder: RunFolder, early: Started | None = None, memory: int | None = None) -> None:
        """`early`: a server that was started before the run's folder was there, and has no log yet. `memory`: the descriptor of a
        memory file, which ranks get."""
        self._folder, self._shared = folder, () if memory is None else (memory,)
        self._log = folder.path / "logs" / "fork-server.log"
        self._server = early
        self._is_early = early is not None
        self._is_ready = False
        self._exit_codes: dict[int, int] = {}
        self._started: list[int] = []
        self._has_ended = False
        self._looked = 0.0

    @property
    def exit_code(self) -> int | None:
        return self._server[0].wait() if self._server is not None and self._has_ended else None

    def ready(self) -> bool:
        """Starts the server where there is none; whether it has imported everything. Raises `RunFailure` where it cannot."""
        if self._server is None or ((self._is_ready or self._is_early) and not self._read()):
            self.close()
            with open(self._log, "wb") as log:
                self._server = start_server(log)
            self._is_ready = self._is_early = self._has_ended = False
        elif not self._read():
            text = log_tail(self._log).strip().rpartition("\n")[2]
            raise RunFailure(
                f"the process that starts ranks ended at once: {text or 'it said nothing'}; see {self._log}"
            )
        elif self._is_ready and self._is_early:
            self._is_early = False
            with open(self._log, "wb") as log, suppress(ConnectionError):
                socket.send_fds(self._server[1], [b"{}"], [log.fileno()])
        return self._is_ready

    def _read(self, timeout: float = 0.0) -> bool:
        """Takes in what the server said; whether it is still there."""
        if self._server is None:
            return False
        self._continue(self._server[0])
        connection = self._server[1]
        poll = select.poll()  # unlike select, takes descriptors above 1023
        poll.register(connection, select.POLLIN)
        while poll.poll(timeout * 1000):
            try:
                text = connection.recv(MESSAGE_BYTES)
            except ConnectionError:
                text = b""
            if not text:
                self._has_ended = True
                return False
            message = json.loads(text)
            self._is_ready |= "ready" in message
            if "exit_code" in message:
                self._exit_codes[message["pid"]] = message["exit_code"]
            elif "pid" in message:
                self._exit_codes.pop(message["pid"], None)  # of a rank before, whose number was given again
                self._started.append(message["pid"])
            timeout = 0.0
        return True

    def _continue(self, server: subprocess.Popen[bytes]) -> None:
        """Continues the server once a second: while somebody has stopped it, nobody learns how its ranks end."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            server.send_signal(signal.SIGCONT)

    def spawn(self, environment: Mapping[str, str], log: IO[bytes]) -> RankProcess:
        order = {"out": str(self._folder.path), "environment": dict(environment)}
        try:
            if self._server is not None:
                descriptors = [log.fileno(), *self._shared]
                socket.send_fds(self._server[1], [json.dumps(order).encode()], descriptors)
            deadline = time.monotonic() + _ANSWER_SECONDS
            while not self._started and time.monotonic() < deadline and self._read(_LOOK_SECONDS):
                pass
        except ConnectionError:
            self._has_ended = True
        if not self._started:
            how = (
                "ended while it started one" if self._has_ended else f"has not started one for {_ANSWER_SECONDS:.0f} s"
            )
            raise RunFailure(f"the process that forks ranks {how}; see {self._log}")
        return _ForkedRank(self, self._started.pop(0))

    def exit_code_of(self, pid: int, timeout: float = 0.0) -> int | None:
        """The exit code of a rank that ended; None while it lives. Ranks end with their server."""
        if pid not in self._exit_codes and not self._read(timeout):
            return self._exit_codes.get(pid, -signal.SIGKILL)
        return self._exit_codes.get(pid)

    def close(self) -> None:
        """Ends the server, and so its ranks."""
        if self._server is not None:
            end_server(self._server)
            self._server = None


class _ForkedRank:
    """One fork of the server."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        return self._server.exit_code_of(self.pid)

    def wait(self) -> int:
        while (code := self._server.exit_code_of(self.pid, timeout=1.0)) is None:
            pass
        return code


def trial_environment(slot: int) -> dict[str, str]:
    """The variables of a process that only tries a device."""
    return {
        "LOCAL_RANK": str(slot),
        "LOCAL_WORLD_SIZE": "1",
        "RANK": "0",
        "OMP_NUM_THREADS": "1",
        "FOURFOLD_TRIAL": "1",
    }


def signal_process(process: RankProcess, number: int) -> None:
    """Sends a signal to a rank that has not ended."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def kill_session(process: RankProcess) -> None:
    """Kills a rank and what it started."""
    signal_process(process, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
