"""Two ways to a rank's process: a command of its own, or a fork of a server that has imported everything."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Protocol

from fourfold.config import RunFailure
from fourfold.launch.failures import log_tail
from fourfold.launch.run_folder import RunFolder
from fourfold.runtime.memory_file import DESCRIPTOR
from fourfold.train.fork_server import MESSAGE_BYTES, die_with_parent

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
            env={**os.environ, **environment},
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

    def __init__(self, folder: RunFolder, threads: int, memory: int | None = None) -> None:
        """`memory`: the descriptor of a memory file, which ranks inherit."""
        self._folder, self._shared = folder, () if memory is None else (memory,)
        own = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        inherited = {DESCRIPTOR: str(memory)} if memory is not None else {}
        self._environment = {**os.environ, **own, **inherited}
        self._log = folder.path / "logs" / "fork-server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._exit_codes: dict[int, int] = {}
        self._started: list[int] = []
        self._has_ended = False
        self._looked = 0.0

    @property
    def exit_code(self) -> int | None:
        return self._process.wait() if self._process is not None and self._has_ended else None

    def ready(self) -> bool:
        """Starts the server where there is none; whether it has imported everything. Raises `RunFailure` where it cannot."""
        if self._process is None or (self._is_ready and not self._read()):
            self._start()
        elif not self._read():
            text = log_tail(self._log).strip().rpartition("\n")[2]
            raise RunFailure(
                f"the process that starts ranks ended at once: {text or 'it said nothing'}; see {self._log}"
            )
        return self._is_ready

    def _start(self) -> None:
        self.close()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fourfold.train.fork_server", str(self._folder.path), str(theirs.fileno())],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(theirs.fileno(), *self._shared),
                preexec_fn=die_with_parent,
            )
        self._is_ready = self._has_ended = False

    def _read(self, timeout: float = 0.0) -> bool:
        """Takes in what the server said; whether it is still there."""
        self._continue()
        while select.select([self._connection], [], [], timeout)[0]:
            try:
                text = self._connection.recv(MESSAGE_BYTES)
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
                self._started.append(message["pid"])
            timeout = 0.0
        return True

    def _continue(self) -> None:
        """Continues the server once a second: while somebody has stopped it, nobody learns how its ranks end."""
        if self._process is not None and time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            self._process.send_signal(signal.SIGCONT)

    def spawn(self, environment: Mapping[str, str], log: IO[bytes]) -> RankProcess:
        try:
            socket.send_fds(self._connection, [json.dumps({"environment": dict(environment)}).encode()], [log.fileno()])
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
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._connection.close()
            self._process = None


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
