"""Connections that have yet to prove that they know the run's secret: so many at once, and one that is too many costs another such.

Whoever can reach the store may open connections and say nothing. They wait in this line alone: a rank that comes meanwhile takes
the place of the oldest connection of the address that has the most, and proves itself in one round trip. Connections that have
proved themselves are in no line and are never closed for a stranger.
"""

import asyncio
import resource
from collections import Counter

MOST = 1024
HELLO_SECONDS = 5.0
"""After which a connection that has not proved itself is closed."""


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
