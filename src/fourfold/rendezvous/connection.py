"""A connection to the store, of whoever knows the run's secret: a rank, or a supervisor. Imports no torch.

Each side proves that with an HMAC over both sides' random challenges. Every later frame carries an HMAC of its direction, number
and content, under a key of this connection alone: a frame that was changed, repeated or left out ends the connection. Nothing is
encrypted.

    server: challenge [32]     client: challenge [32] + proof [32]     server: proof [32]
    then frames of length [4] + HMAC [32] + fields, each field as length [4] + bytes

The first field of a request is its number, and that of its answer the same one: answers come in the order in which they are ready.
"""

import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress

from fourfold.config import RunFailure
from fourfold.config.errors import open_files_advice

CHALLENGE_BYTES = PROOF_BYTES = 32
SECRET = "FOURFOLD_SECRET"
"""The environment variable in which the launcher gives its ranks the secret, in hexadecimal digits."""
MAX_FRAME_BYTES = 1 << 24
_LENGTH = struct.Struct(">I")
HEAD_BYTES = _LENGTH.size + PROOF_BYTES
FROM_CLIENT, FROM_SERVER = b"client", b"server"
_RETRY_SECONDS = 0.1
_SEND_SECONDS = struct.pack("ll", 30, 0)
"""How long the kernel may take nothing of a request: then the server is gone."""


class BrokenFrame(Exception):
    """A message that is not the other side's: changed, too long, or of somebody who does not know the secret."""


def challenge() -> bytes:
    """Random bytes, for one connection."""
    return secrets.token_bytes(CHALLENGE_BYTES)


def new_secret() -> bytes:
    """A secret for one run."""
    return secrets.token_bytes(32)


def proof(secret: bytes, side: bytes, challenges: bytes) -> bytes:
    """The answer of `side` to both challenges. [32]"""
    return hmac.digest(secret, side + challenges, "sha256")


def check_proof(secret: bytes, side: bytes, challenges: bytes, answer: bytes) -> None:
    """Raises `BrokenFrame` where the other side does not know the secret."""
    if not hmac.compare_digest(proof(secret, side, challenges), answer):
        raise BrokenFrame("the other side does not know the run's secret")


class FrameCodec:
    """Frames of one connection, seen from `side`; `challenges`: the server's, then the client's."""

    def __init__(self, secret: bytes, challenges: bytes, side: bytes) -> None:
        self._key = proof(secret, b"frames", challenges)
        self._sends, self._receives = (FROM_CLIENT, FROM_SERVER) if side == FROM_CLIENT else (FROM_SERVER, FROM_CLIENT)
        self._sent = self._received = 0

    def encode(self, fields: Sequence[bytes]) -> bytes:
        """The next frame to send."""
        body = b"".join(_LENGTH.pack(len(field)) + field for field in fields)
        mark = self._mark(self._sends, self._sent, body)
        self._sent += 1
        return _LENGTH.pack(len(body)) + mark + body

    def body_bytes(self, head: bytes | bytearray) -> int:
        """The length of the content that follows the first `HEAD_BYTES` of a frame. Raises `BrokenFrame`."""
        (length,) = _LENGTH.unpack_from(head)
        if length > MAX_FRAME_BYTES:
            raise BrokenFrame(f"a message of {length} bytes; allowed: {MAX_FRAME_BYTES}")
        return int(length)

    def decode(self, head: bytes, body: bytes) -> list[bytes]:
        """The fields of the next frame received. Raises `BrokenFrame`."""
        if not hmac.compare_digest(self._mark(self._receives, self._received, body), head[_LENGTH.size :]):
            raise BrokenFrame("a message that the other side did not send")
        self._received += 1
        fields, offset = [], 0
        while offset < len(body):
            if offset + _LENGTH.size > len(body):
                raise BrokenFrame("a message that is cut short")
            start = offset + _LENGTH.size
            offset = start + _LENGTH.unpack_from(body, offset)[0]
            if offset > len(body):
                raise BrokenFrame("a message that is cut short")
            fields.append(body[start:offset])
        return fields

    def _mark(self, side: bytes, number: int, body: bytes) -> bytes:
        return hmac.digest(self._key, side + number.to_bytes(8, "big") + body, "sha256")


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
