"""A connection to the store, of whoever knows the run's secret: a rank, or a supervisor. Imports no torch."""

import socket
import struct
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress

from fourfold.config import RunFailure
from fourfold.config.errors import open_files_advice
from fourfold.rendezvous.frames import (
    CHALLENGE_BYTES,
    FROM_CLIENT,
    FROM_SERVER,
    HEAD_BYTES,
    PROOF_BYTES,
    BrokenFrame,
    FrameCodec,
    challenge,
    check_proof,
    proof,
)

_RETRY_SECONDS = 0.1
_SEND_SECONDS = struct.pack("ll", 30, 0)
"""How long the kernel may take nothing of a request: then the server is gone."""


class Connection:
    """One connection to the server, for all threads of this process. A request carries a number and its answer the same one, so
    that a request that waits holds up no other. One thread of its own reads the answers. Raises `OSError`, `EOFError` and
    `BrokenFrame` where it breaks."""

    def __init__(self, host: str, port: int, secret: bytes, seconds: float) -> None:
        """Tries until the server is there, for `seconds`. Raises `RunFailure`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._socket = socket.create_connection((host, port), timeout=min(seconds, 10.0))
                self._codec = self._prove(secret)
                break
            except (OSError, EOFError, UnicodeError) as error:
                if (cure := open_files_advice(error)) is not None:
                    raise RunFailure(
                        f"the store of this run at {host}:{port} was not reached ({error}); {cure}"
                    ) from None
                if time.monotonic() > deadline:
                    raise RunFailure(
                        f"the store of this run at {host}:{port} was not reached in {seconds:g} s ({error}); MASTER_ADDR must "
                        f"be the address at which this machine reaches the one with rank 0, and no firewall may close it"
                    ) from None
                time.sleep(_RETRY_SECONDS)
            except BrokenFrame as error:
                raise RunFailure(f"{host}:{port} is not the store of this run: {error}") from None
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_SECONDS)
        self._lock = threading.RLock()
        self._asked = 0
        self._waiting: dict[int, Future[list[bytes]]] = {}
        self._end: Exception | None = None
        threading.Thread(target=self._listen, name="store", daemon=True).start()

    def _prove(self, secret: bytes) -> FrameCodec:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs, ours = self._read(CHALLENGE_BYTES), challenge()
        self._socket.sendall(ours + proof(secret, FROM_CLIENT, theirs + ours))
        check_proof(secret, FROM_SERVER, theirs + ours, self._read(PROOF_BYTES))
        return FrameCodec(secret, theirs + ours, FROM_CLIENT)

    def begin(self, fields: list[bytes]) -> Future[list[bytes]]:
        """Sends a request; its answer, once it is there."""
        answer: Future[list[bytes]] = Future()
        with self._lock:
            if self._end is not None:
                raise self._end
            self._asked += 1
            self._waiting[self._asked] = answer
            try:
                self._socket.sendall(self._codec.encode([b"%d" % self._asked, *fields]))
            except OSError as error:  # half a frame may have gone: nothing can follow
                self._break(error)
                raise
        return answer

    def ask(self, fields: list[bytes], seconds: float) -> list[bytes]:
        """Sends a request and returns the fields of its answer, which comes within so many seconds."""
        try:
            return self.begin(fields).result(seconds)
        except FutureTimeout as error:
            raise TimeoutError(str(error) or f"no answer in {seconds:g} s") from None

    def close(self) -> None:
        """Ends it; whoever still waits for an answer gets an error."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        self._socket.close()

    def _listen(self) -> None:
        """Gives every answer to whoever waits for it, until the connection ends."""
        try:
            while True:
                head = self._read(HEAD_BYTES)
                number, *fields = self._codec.decode(head, self._read(self._codec.body_bytes(head)))
                answer = self._waiting.pop(int(number), None)
                if answer is not None:
                    answer.set_result(fields)
        except (OSError, EOFError, BrokenFrame) as error:
            self._break(error)
        except ValueError:
            self._break(BrokenFrame("an answer without a number"))

    def _break(self, error: Exception) -> None:
        with self._lock:
            self._end = self._end or error
            self.close()
            while self._waiting:
                self._waiting.popitem()[1].set_exception(self._end)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError("the other side closed the connection")
            data += piece
        return data
