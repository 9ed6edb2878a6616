"""One connection to the store, of whoever knows the run's secret: a rank, or a supervisor. Imports no torch."""

import socket
import time

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


class Connection:
    """One connection to the server. Raises `OSError`, `EOFError` and `BrokenFrame` where it breaks."""

    def __init__(self, host: str, port: int, secret: bytes, seconds: float) -> None:
        """Tries until the server is there, for `seconds`. Raises `RunFailure`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._socket = socket.create_connection((host, port), timeout=min(seconds, 10.0))
                self._codec = self._prove(secret)
                return
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

    def _prove(self, secret: bytes) -> FrameCodec:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs, ours = self._read(CHALLENGE_BYTES), challenge()
        self._socket.sendall(ours + proof(secret, FROM_CLIENT, theirs + ours))
        check_proof(secret, FROM_SERVER, theirs + ours, self._read(PROOF_BYTES))
        return FrameCodec(secret, theirs + ours, FROM_CLIENT)

    def ask(self, fields: list[bytes], seconds: float) -> list[bytes]:
        """Sends a request and returns the fields of its answer."""
        self._socket.settimeout(seconds)
        self._socket.sendall(self._codec.encode(fields))
        head = self._read(HEAD_BYTES)
        return self._codec.decode(head, self._read(self._codec.body_bytes(head)))

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError("the other side closed the connection")
            data += piece
        return data
