"""Messages between a store and a rank: who cannot prove to know the run's secret is not heard.

Each side proves it with an HMAC over both sides' random challenges. Every later frame carries an HMAC of its direction, number and
content, under a key of this connection alone: a frame that was changed, repeated or left out ends the connection. Nothing is
encrypted.

    server: challenge [32]     client: challenge [32] + proof [32]     server: proof [32]
    then frames of length [4] + HMAC [32] + fields, each field as length [4] + bytes

The first field of a request is its number, and that of its answer the same one: answers come in the order in which they are ready.
"""

import hmac
import secrets
import struct
from collections.abc import Sequence

CHALLENGE_BYTES = PROOF_BYTES = 32
SECRET = "FOURFOLD_SECRET"
"""The environment variable in which the launcher gives its ranks the secret, in hexadecimal digits."""
MAX_FRAME_BYTES = 1 << 24
_LENGTH = struct.Struct(">I")
HEAD_BYTES = _LENGTH.size + PROOF_BYTES
FROM_CLIENT, FROM_SERVER = b"client", b"server"


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
