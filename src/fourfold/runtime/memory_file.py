"""Memory of a machine that outlives its ranks: copies of their state, which the next ranks read instead of a checkpoint.

One file in /dev/shm without a name, which the supervisor opens and the processes that it starts inherit. Nobody else can open it.
The kernel frees it when the last of them has ended, however that happens. It is sparse: each rank has two regions, by its number,
so that while a copy is written the one before stays.

    region   head: length [8], SHA-256 [32], JSON text     from DATA_OFFSET on: a file as a checkpoint has it
"""

import ctypes
import errno
import json
import os
from hashlib import sha256
from typing import Any

PLACE = "/dev/shm"
DESCRIPTOR = "FOURFOLD_MEMORY"
"""The environment variable that tells ranks the descriptor."""
VERSIONS = 2
DATA_OFFSET = 1 << 28
_REGION_BITS = 40
_HEAD_BYTES = 40
_CONTROL = 0
_PUNCH = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE."""


def open_memory() -> int:
    """The descriptor of an empty memory file. Raises `OSError` where the system has none."""
    if not hasattr(os, "O_TMPFILE"):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), PLACE)
    return os.open(PLACE, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


class MemoryFile:
    """The regions of one machine. A region is numbered by the rank whose state it holds, and by version, 0 or 1."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def data_start(self, rank: int, version: int) -> int:
        """Where in the file the data of a region begin."""
        return _start(_number(rank, version)) + DATA_OFFSET

    def reserve(self, rank: int, version: int, size_bytes: int) -> None:
        """Takes memory for a region's data, so that writing them cannot fail. Raises `OSError`."""
        start = _start(_number(rank, version))
        os.posix_fallocate(self.descriptor, start, 1)
        if size_bytes:
            os.posix_fallocate(self.descriptor, start + DATA_OFFSET, size_bytes)

    def begin(self, rank: int, version: int) -> None:
        """From now on the region holds no copy."""
        os.pwrite(self.descriptor, bytes(_HEAD_BYTES), _start(_number(rank, version)))

    def write(self, data: bytes | memoryview, place: int) -> None:
        """Writes bytes at a place of the file. Raises `OSError`."""
        rest = memoryview(data).cast("B")
        while len(rest):
            count = os.pwrite(self.descriptor, rest, place)
            rest, place = rest[count:], place + count

    def commit(self, rank: int, version: int, head: str) -> None:
        """Makes the region a copy, once its data are there. Raises `OSError`."""
        self._write_head(_number(rank, version), head)

    def head(self, rank: int, version: int) -> str | None:
        """The text with which a region was committed; None where it holds no copy."""
        return self._read_head(_number(rank, version))

    def regions(self) -> list[tuple[int, int]]:
        """(rank, version) of all regions that hold something, rising."""
        found: list[tuple[int, int]] = []
        place = _start(1)
        while True:
            try:
                place = os.lseek(self.descriptor, place, os.SEEK_DATA)
            except OSError:  # nothing follows
                return found
            number = (place >> _REGION_BITS) - 1
            found.append(divmod(number, VERSIONS))
            place = _start(number + 2)

    def free(self, rank: int, version: int) -> None:
        """Gives the memory of a region back."""
        punch = ctypes.CDLL(None, use_errno=True).fallocate
        punch.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        punch(self.descriptor, _PUNCH, _start(_number(rank, version)), 1 << _REGION_BITS)

    @property
    def lineage(self) -> dict[str, Any]:
        """Which copies the newest ranks may go on from: those that they wrote (`fence`), and the one that they began from
        (`attempt`)."""
        return json.loads(self._read_head(_CONTROL) or "{}")

    @lineage.setter
    def lineage(self, values: dict[str, Any]) -> None:
        self._write_head(_CONTROL, json.dumps(values))

    def newest_step(self) -> int:
        """The highest step of a copy; 0 without one."""
        heads = (self.head(rank, version) for rank, version in self.regions())
        return max((int(json.loads(head)["step"]) for head in heads if head is not None), default=0)

    def _write_head(self, number: int, text: str) -> None:
        data = text.encode()
        if len(data) > DATA_OFFSET - _HEAD_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), PLACE)
        self.write(data, _start(number) + _HEAD_BYTES)
        self.write(len(data).to_bytes(8, "little") + sha256(data).digest(), _start(number))

    def _read_head(self, number: int) -> str | None:
        start = _start(number)
        first = os.pread(self.descriptor, _HEAD_BYTES, start)
        length = int.from_bytes(first[:8], "little")
        if not 0 < length <= DATA_OFFSET - _HEAD_BYTES:
            return None
        data = os.pread(self.descriptor, length, start + _HEAD_BYTES)
        return data.decode() if sha256(data).digest() == first[8:] else None


def _number(rank: int, version: int) -> int:
    return _CONTROL + 1 + rank * VERSIONS + version


def _start(number: int) -> int:
    return number << _REGION_BITS
