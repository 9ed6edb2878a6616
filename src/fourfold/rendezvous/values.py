"""The keys and values of the store, and who waits for which."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from fourfold.rendezvous.connection import BrokenFrame

Reply = Callable[[Sequence[bytes]], None]
OK, LATE = b"ok", b"late"


class Values:
    """Answers requests: a name and its fields. The answer is `ok` and results, or `late` where what a request waits for did not
    come in time. `connections`: those that are open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.connections: set[asyncio.Transport] = set()
        self._loop = loop
        self._values: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, list[Callable[[], None]]] = {}

    def close(self) -> None:
        """Closes every connection."""
        for transport in list(self.connections):
            transport.abort()

    def answer(self, request: Sequence[bytes], reply: Reply) -> None:
        """Answers at once, or when what is waited for is there. Raises `BrokenFrame` and `ValueError` for a malformed request."""
        match request:
            case (b"check", *keys):
                reply([OK, b"1" if all(key in self._values for key in keys) else b"0"])
            case (b"set", key, value):
                self.set(key, value)
                reply([OK])
            case (b"get", seconds, *keys):
                self._when(partial(self._missing, keys), float(seconds), reply, partial(self._all, keys))
            case (b"wait", seconds, *keys):
                self._when(partial(self._missing, keys), float(seconds), reply, list)
            case (b"changed", seconds, key, old):
                self._when(partial(self._unchanged, key, old), float(seconds), reply, partial(self._all, [key]))
            case (b"add", key, amount):
                self.set(key, b"%d" % (int(self._values.get(key, b"0")) + int(amount)))
                reply([OK, self._values[key]])
            case (b"append", key, value):
                self.set(key, self._values.get(key, b"") + value)
                reply([OK])
            case (b"compare_set", key, expected, desired):
                if self._values.get(key, b"") == expected:
                    self.set(key, desired)
                reply([OK, self._values.get(key, expected)])
            case (b"delete", key):
                reply([OK, b"1" if self._values.pop(key, None) is not None else b"0"])
            case (b"count", scope):
                reply([OK, b"%d" % sum(key.startswith(scope) for key in self._values)])
            case _:
                raise BrokenFrame("a request of another form")

    def get(self, key: bytes) -> bytes:
        """The value of a key; empty where there is none."""
        return self._values.get(key, b"")

    def set(self, key: bytes, value: bytes) -> None:
        """Sets a key, and answers those who wait for it."""
        self._values[key] = value
        for look_again in self._waiting.pop(key, ()):
            look_again()

    def _all(self, keys: Sequence[bytes]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def _unchanged(self, key: bytes, old: bytes) -> bytes | None:
        return key if self.get(key) == old else None

    def _missing(self, keys: Sequence[bytes]) -> bytes | None:
        return next((key for key in keys if key not in self._values), None)

    def _when(
        self, lacks: Callable[[], bytes | None], seconds: float, reply: Reply, results: Callable[[], list[bytes]]
    ) -> None:
        """Replies when no key is to be set any more, or `late` after so many seconds. `lacks`: the first key that is."""
        is_late = False

        def be_late() -> None:
            nonlocal is_late
            is_late = True
            reply([LATE])

        timer = self._loop.call_later(max(0.0, min(seconds, 1e6)), be_late)

        def look() -> None:
            if is_late:
                return
            missing = lacks()
            if missing is not None:
                self._waiting.setdefault(missing, []).append(look)
                return
            timer.cancel()
            reply([OK, *results()])

        look()
