"""Connections to the server: so many at once and so many a client, and each states its request in a few seconds.

Whoever reaches the port may open connections, with a token or without. One that is too many takes the place of the client's oldest
that answers nothing at that moment, so that connections which say nothing keep nobody out.
"""

import asyncio
import itertools
import resource
from collections import Counter

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST, MOST_OF_CLIENT = 512, 64
HEADER_SECONDS = 10.0
"""From a connection's begin, or the last answer, or the first byte of a further request, until its headers are read."""
_NUMBERS = itertools.count()


def most_connections() -> int:
    """Connections at once: a half of the files that this process may open, and `MOST` at most."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if limit == resource.RLIM_INFINITY else max(8, min(MOST, limit // 2))


class BoundedProtocol(H11Protocol):
    """One connection."""

    most_of_client = MOST_OF_CLIENT
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.number = next(_NUMBERS)
        others = [each for each in self.connections if isinstance(each, BoundedProtocol) and each is not self]
        clients = Counter(each.address for each in others)
        if clients[self.address] >= self.most_of_client:
            self._make_room([each for each in others if each.address == self.address])
        elif len(others) >= most_connections():
            busiest = clients.most_common(1)[0][0]
            self._make_room([each for each in others if each.address == busiest])
        self._expect_headers()

    @property
    def address(self) -> str:
        return self.client[0] if self.client is not None else ""

    @property
    def answers(self) -> bool:
        """Whether a request was read that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _make_room(self, others: "list[BoundedProtocol]") -> None:
        """Closes the oldest of these that answers nothing; this one where all do."""
        idle = [each for each in others if not each.answers and not each.transport.is_closing()]
        (min(idle, key=lambda each: each.number) if idle else self).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.answers:
            self._forget_timer()
        elif self._timer is None:
            self._expect_headers()

    def on_response_complete(self) -> None:
        self._forget_timer()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._forget_timer()
        self._timer = self.loop.call_later(HEADER_SECONDS, self._be_late)

    def _be_late(self) -> None:
        self._timer = None
        if not self.answers:
            self.transport.abort()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
