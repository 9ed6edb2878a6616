"""The ranks' side of the store, as torch.distributed takes it."""

import threading
from datetime import timedelta

import torch.distributed as dist

from fourfold.rendezvous.connection import Connection
from fourfold.rendezvous.frames import BrokenFrame
from fourfold.rendezvous.values import OK

_MARGIN_SECONDS = 30.0
"""How much longer than the server a rank waits for an answer: then the server is gone."""


class SecretStore(dist.Store):
    """A store whose server (`StoreServer`) and ranks know one secret. Each thread has a connection of its own, so that one that
    waits holds up no other. Raises `torch.distributed.DistStoreError`."""

    def __init__(self, host: str, port: int, secret: bytes, timeout: timedelta) -> None:
        super().__init__()
        self._place, self._secret, self._seconds = (host, port), secret, timeout.total_seconds()
        self._connections = threading.local()
        self._connection()

    def _connection(self) -> Connection:
        if not hasattr(self._connections, "own"):
            self._connections.own = Connection(*self._place, self._secret, self._seconds)
        return self._connections.own

    def _ask(self, *request: str | bytes, seconds: float = 0.0) -> list[bytes]:
        fields = [field.encode() if isinstance(field, str) else field for field in request]
        try:
            status, *results = self._connection().ask(fields, seconds + _MARGIN_SECONDS)
        except (OSError, EOFError, ValueError, BrokenFrame) as error:
            raise dist.DistStoreError(
                f"the store of this run at {self._name} is gone: connection lost ({error})"
            ) from None
        if status != OK:
            waited = ", ".join(field.decode(errors="replace") for field in fields[2:])
            raise dist.DistStoreError(f"nobody set {waited[:200]} in {seconds:g} s (store at {self._name})")
        return results

    @property
    def _name(self) -> str:
        return f"{self._place[0]}:{self._place[1]}"

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, value)

    def get(self, key: str) -> bytes:
        return self._ask("get", str(self._seconds), key, seconds=self._seconds)[0]

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", key, str(value))[0])

    def append(self, key: str, value: bytes) -> None:
        self._ask("append", key, value)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        return self._ask("compare_set", key, expected_value, desired_value)[0]

    def check(self, keys: list[str]) -> bool:
        return self._ask("check", *keys)[0] == b"1"

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = timeout.total_seconds() if timeout is not None else self._seconds
        self._ask("wait", str(seconds), *keys, seconds=seconds)

    def delete_key(self, key: str) -> bool:
        return self._ask("delete", key)[0] == b"1"

    def num_keys(self) -> int:
        return int(self._ask("count")[0])

    def clone(self) -> "SecretStore":
        """This store: threads do not share connections anyway."""
        return self

    deleteKey, getNumKeys = delete_key, num_keys  # as torch calls them from C++
