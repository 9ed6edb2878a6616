"""The ranks' side of the store, as torch.distributed takes it."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from fourfold.rendezvous.connection import BrokenFrame, Connection
from fourfold.rendezvous.values import OK

_MARGIN_SECONDS = 30.0
"""How much longer than the server a rank waits for an answer: then the server is gone."""
_LONG_SECONDS = 1e5
"""After which a key that is awaited for ever is asked for again."""


class SecretStore(dist.Store):
    """A store whose server (`StoreServer`) and ranks know one secret. A process has one connection, on which a request that waits
    holds up no other.

    `scope`: what every key begins with, such as the number of the generation. It is part of this store and of no `PrefixStore`
    around it, since torch takes those off: NCCL's groups write and look for `exception_dump` and `remote_error` in the store
    beneath all prefixes (`getUnderlyingNonPrefixStore`), and what one generation wrote would end the next. Raises
    `torch.distributed.DistStoreError`.
    """

    def __init__(self, host: str, port: int, secret: bytes, timeout: timedelta, scope: str = "") -> None:
        super().__init__()
        self._name, self._scope, self.seconds = f"{host}:{port}", scope, timeout.total_seconds()
        self._connection = Connection(host, port, secret, self.seconds)

    def _fields(
        self, name: str, keys: Sequence[str], *values: str | bytes, seconds: float | None = None
    ) -> list[bytes]:
        """A request: its name, how long the server may wait where it waits, keys and values."""
        waits = [] if seconds is None else [str(seconds)]
        scoped = [self._scope + key for key in keys]
        return [each.encode() if isinstance(each, str) else each for each in (name, *waits, *scoped, *values)]

    def _ask(self, name: str, keys: Sequence[str], *values: str | bytes, seconds: float | None = None) -> list[bytes]:
        fields = self._fields(name, keys, *values, seconds=seconds)
        try:
            status, *results = self._connection.ask(fields, (seconds or 0.0) + _MARGIN_SECONDS)
        except (OSError, EOFError, ValueError, BrokenFrame) as error:
            raise self._gone(error) from None
        if status != OK:
            raise dist.DistStoreError(f"nobody set {', '.join(keys)[:200]} in {seconds:g} s (store at {self._name})")
        return results

    def _gone(self, error: BaseException) -> dist.DistStoreError:
        return dist.DistStoreError(f"the store of this run at {self._name} is gone: connection lost ({error})")

    def awaited(self, key: str, heard: str) -> Callable[[], bool]:
        """A look whether a key was set since, as often as one likes, for one request. As soon as this process knows, it adds one to
        the key `heard`. The look raises where the store is gone."""

        def hear(answer: Future[list[bytes]]) -> None:
            if answer.exception() is None and answer.result()[0] == OK:
                with suppress(OSError, EOFError, BrokenFrame):  # the next look says so
                    self._connection.begin(self._fields("add", [heard], "1"))

        def begin() -> Future[list[bytes]]:
            try:
                answer = self._connection.begin(self._fields("wait", [key], seconds=_LONG_SECONDS))
            except (OSError, EOFError, BrokenFrame) as error:
                raise self._gone(error) from None
            answer.add_done_callback(hear)
            return answer

        answers = [begin()]

        def look() -> bool:
            if not (answer := answers[-1]).done():
                return False
            if (error := answer.exception()) is not None:
                raise self._gone(error) from None
            if answer.result()[0] != OK:
                answers[:] = [begin()]
                return False
            return True

        return look

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], value)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values of all keys, by one request, once all are there."""
        return self._ask("get", keys, seconds=self.seconds)

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", [key], str(value))[0])

    def append(self, key: str, value: bytes) -> None:
        self._ask("append", [key], value)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        return self._ask("compare_set", [key], expected_value, desired_value)[0]

    def check(self, keys: list[str]) -> bool:
        return self._ask("check", keys)[0] == b"1"

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", keys, seconds=timeout.total_seconds() if timeout is not None else self.seconds)

    def delete_key(self, key: str) -> bool:
        return self._ask("delete", [key])[0] == b"1"

    def num_keys(self) -> int:
        return int(self._ask("count", [""])[0])

    def clone(self) -> "SecretStore":
        """This store: all threads share its connection anyway."""
        return self

    deleteKey, getNumKeys = delete_key, num_keys  # as torch calls them from C++
