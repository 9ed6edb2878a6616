"""The store's server: one thread, which listens on the addresses given and on no other.

Whoever can reach the store may open connections and say nothing. They wait in a line of their own, of bounded length: a rank that
comes meanwhile takes the place of the oldest connection of the address that has the most, and proves itself in one round trip.
Connections that have proved themselves are in no line and are never closed for a stranger.
"""

import asyncio
import resource
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from fourfold.config import RunFailure
from fourfold.config.errors import open_files_advice, shortened
from fourfold.rendezvous.addresses import LOOPBACKS, loopback
from fourfold.rendezvous.connection import (
    CHALLENGE_BYTES,
    FROM_CLIENT,
    FROM_SERVER,
    HEAD_BYTES,
    PROOF_BYTES,
    SECRET,
    BrokenFrame,
    FrameCodec,
    challenge,
    check_proof,
    new_secret,
    proof,
)
from fourfold.rendezvous.values import Values

MOST = 1024
HELLO_SECONDS = 5.0
"""After which a connection that has not proved itself is closed."""
_BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted."""


def most_strangers() -> int:
    """Strangers at once: a quarter of the files that this process may open, and `MOST` at most."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if limit == resource.RLIM_INFINITY else max(8, min(MOST, limit // 4))


class Strangers:
    """The line of a server. `most`: its length."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most if most is not None else most_strangers()
        self._waiting: dict[asyncio.Transport, tuple[str, asyncio.TimerHandle]] = {}
        self._of_address = Counter[str]()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, transport: asyncio.Transport) -> None:
        """Takes a connection into the line, and closes one where it is full."""
        if len(self._waiting) >= self.most:
            busiest = self._of_address.most_common(1)[0][0]
            oldest = next(each for each, (address, _) in self._waiting.items() if address == busiest)
            self.remove(oldest)
            oldest.abort()
        address = str((transport.get_extra_info("peername") or ("",))[0])
        deadline = asyncio.get_running_loop().call_later(HELLO_SECONDS, transport.abort)
        self._waiting[transport] = address, deadline
        self._of_address[address] += 1

    def remove(self, transport: asyncio.Transport) -> None:
        """Forgets a connection that has proved itself, or has ended."""
        address, deadline = self._waiting.pop(transport, ("", None))
        if deadline is not None:
            deadline.cancel()
            self._of_address[address] -= 1
            self._of_address += Counter()  # drops addresses that have none


class StoreServer:
    """Keys and values of one run. Listens from the start; answers after `start`, so that a launcher may fork in between.

    `hosts`: names or addresses of this machine, by default its loopback. `port` 0: any free one; where the port
    asked for is taken, any free one too.
    """

    def __init__(self, hosts: Sequence[str] = (), port: int = 0) -> None:
        hosts = hosts or (loopback(),)
        self.secret = new_secret()
        self._sockets = [_listen(hosts[0], port)]
        self.host, self.port = hosts[0], int(self._sockets[0].getsockname()[1])
        self._sockets += [_listen(host, self.port) for host in hosts[1:]]
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._take_error)
        self._values = Values(self._loop)
        self._strangers = Strangers()
        self._ended = asyncio.Event()
        self.refusal = ""
        """Why the newest connection was not accepted, where the limit of open files is why."""
        serve = self._loop.run_until_complete
        self._thread = threading.Thread(target=lambda: serve(self._serve()), name="rendezvous", daemon=True)

    def environment(self) -> dict[str, str]:
        """The variables by which ranks on this machine find the store and are let in."""
        return {"MASTER_ADDR": self.host, "MASTER_PORT": str(self.port), SECRET: self.secret.hex()}

    def start(self) -> None:
        """Answers from now on, until `close` or the end of this process."""
        if self._thread.ident is None:
            self._thread.start()

    def get(self, key: str) -> bytes:
        """The value of a key, for the process that serves it; empty where there is none."""
        return self._values.get(key.encode())

    def set(self, key: str, value: str) -> None:
        """Sets a key, once the store answers."""
        self._loop.call_soon_threadsafe(self._values.set, key.encode(), value.encode())

    def close(self) -> None:
        """Closes every connection."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
        self._loop.close()
        for listener in self._sockets:
            listener.close()

    def _take_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keeps why no connection is accepted, which the loop tries again each second; prints what should not be."""
        error = context.get("exception")
        if not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif (cure := open_files_advice(error)) is not None:
            self.refusal = (
                f"the store of this run has {len(self._values.connections)} connections and accepts no other "
                f"({error.strerror}): those that wait cannot join; {cure}"
            )

    async def _serve(self) -> None:
        for listener in self._sockets:
            await self._loop.create_server(lambda: _Peer(self.secret, self._values, self._strangers), sock=listener)
            listener.listen(_BACKLOG)  # the loop's own is shorter
        await self._ended.wait()
        self._values.close()


class _Peer(asyncio.Protocol):
    """One connection. Whatever a stranger sends, only its own connection ends."""

    def __init__(self, secret: bytes, values: Values, strangers: Strangers) -> None:
        self._secret, self._values, self._strangers = secret, values, strangers
        self._codec: FrameCodec | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._challenge = transport, challenge()
        self._values.connections.add(transport)
        self._strangers.add(transport)
        transport.write(self._challenge)

    def connection_lost(self, error: Exception | None) -> None:
        self._values.connections.discard(self._transport)
        self._strangers.remove(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while (part := self._next_part()) is not None:
                if self._codec is None:
                    self._admit(part)
                else:
                    number, *request = self._codec.decode(part[:HEAD_BYTES], part[HEAD_BYTES:])
                    self._values.answer(request, partial(self._reply, number))
        except (BrokenFrame, ValueError):
            self._transport.abort()

    def _next_part(self) -> bytes | None:
        """The answer to the challenge, or a frame, once it is there in full."""
        if self._codec is None:
            size = CHALLENGE_BYTES + PROOF_BYTES
        elif len(self._buffer) < HEAD_BYTES:
            return None
        else:
            size = HEAD_BYTES + self._codec.body_bytes(self._buffer)
        if len(self._buffer) < size:
            return None
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        return part

    def _admit(self, answer: bytes) -> None:
        """Lets in who knows the secret."""
        challenges = self._challenge + answer[:CHALLENGE_BYTES]
        check_proof(self._secret, FROM_CLIENT, challenges, answer[CHALLENGE_BYTES:])
        self._strangers.remove(self._transport)
        self._transport.write(proof(self._secret, FROM_SERVER, challenges))
        self._codec = FrameCodec(self._secret, challenges, FROM_SERVER)

    def _reply(self, number: bytes, fields: Sequence[bytes]) -> None:
        if self._codec is not None and not self._transport.is_closing():
            self._transport.write(self._codec.encode([number, *fields]))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, (address, *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:
            if port == 0:
                raise
            listener.bind((address, 0))
        listener.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        if (cure := open_files_advice(error)) is not None:
            raise RunFailure(f"{host}: cannot listen ({error}); {cure}") from None
        if host in LOOPBACKS:
            raise RunFailure(
                f"{host}: the run's ranks cannot meet at this address ({error}): this machine's loopback interface has neither "
                f"127.0.0.1 nor ::1; what works: ip link set lo up, and ip addr add 127.0.0.1/8 dev lo"
            ) from None
        raise RunFailure(
            f"{shortened(host)[1:-1]}: the run's ranks cannot meet at this address ({error}); it must be one of this machine, "
            f"which starts rank 0; what works: export MASTER_ADDR=ADDRESS with the address at which the others reach it"
        ) from None
    return listener
