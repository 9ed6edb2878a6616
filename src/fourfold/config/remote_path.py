"""A folder or object that an fsspec URL names, with the methods of `Path` that checkpoints use."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from fourfold.config.errors import UserError, error_text

_BLOCK_BYTES = 1 << 24
"""Size of the parts in which an object is sent."""


def place(text: str | Path) -> Path:
    """The path or, for `s3://bucket/folder` and the like, the `RemotePath` of a text. Raises `UserError` for a protocol whose
    package is missing."""
    if "://" not in str(text):
        return Path(text).expanduser()
    import fsspec

    try:
        system, path = fsspec.url_to_fs(str(text))
    except (ImportError, ValueError) as error:
        raise UserError(f"{text}: {error}; what works: a folder, or pip install the package of this protocol") from None
    return cast(Path, RemotePath(system, str(text).partition("://")[0], path))


def is_remote(path: Path) -> bool:
    """Whether a path is a `RemotePath`."""
    return isinstance(path, RemotePath)


@dataclass(frozen=True)
class StatResult:
    """The part of `os.stat_result` that is known."""

    st_size: int


@contextmanager
def _answers(path: object) -> Iterator[None]:
    """Whatever a file system or the library behind it raises (a checksum that does not match, a credential that ran out) comes as
    the `OSError` that a disk would raise."""
    try:
        yield
    except (OSError, UserError, MemoryError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, error_text(error), str(path)) from error


class RemotePath:
    """A path of an fsspec file system, whose methods raise `OSError`. Listings are always asked for anew: other ranks write too."""

    def __init__(self, system: Any, protocol: str, path: str) -> None:
        self._system, self._protocol, self._path = system, protocol, path.rstrip("/")

    def _at(self, path: str) -> "RemotePath":
        return RemotePath(self._system, self._protocol, path)

    def __truediv__(self, name: str) -> "RemotePath":
        return self._at(f"{self._path}/{name}")

    def __str__(self) -> str:
        return f"{self._protocol}://{self._path}"

    __repr__ = __fspath__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "RemotePath") -> bool:
        return str(self) < str(other)

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    @property
    def parent(self) -> "RemotePath":
        return self._at(self._path.rpartition("/")[0])

    def absolute(self) -> "RemotePath":
        return self

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls a method of the file system. Raises `OSError`."""
        with _answers(self):
            return getattr(self._system, method)(*arguments, **options)

    def _look(self, method: str, **options: Any) -> Any:
        """Asks for what is there now."""
        self._system.invalidate_cache()
        return self._ask(method, self._path, **options)

    def exists(self) -> bool:
        return bool(self._look("exists"))

    def is_dir(self) -> bool:
        return bool(self._look("isdir"))

    def is_file(self) -> bool:
        return bool(self._look("isfile"))

    def iterdir(self) -> Iterator["RemotePath"]:
        """Raises `FileNotFoundError`."""
        for path in self._look("ls", detail=False):
            if path.rstrip("/") != self._path:
                yield self._at(path)

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        self._system.invalidate_cache()
        return (self._at(path) for path in self._ask("glob", f"{self._path}/{pattern}"))

    def stat(self) -> StatResult:
        return StatResult(int(self._look("info")["size"]))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = True) -> None:
        self._ask("makedirs", self._path, exist_ok=True)

    def open(self, mode: str = "rb", **options: Any) -> IO[bytes]:
        return cast(IO[bytes], self._ask("open", self._path, mode, block_size=_BLOCK_BYTES))

    def read_bytes(self) -> bytes:
        return cast(bytes, self._ask("cat_file", self._path))

    def read_range(self, start: int, end: int) -> bytes:
        """Bytes [start, end), in one request."""
        return cast(bytes, self._ask("cat_file", self._path, start=start, end=end))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        self._ask("pipe_file", self._path, text.encode(encoding))

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok or self.exists():
            self._ask("rm_file", self._path)

    def rename(self, target: "RemotePath") -> None:
        self._ask("mv", self._path, target._path)

    def remove_tree(self) -> None:
        """Deletes everything below."""
        if self.exists():
            self._ask("rm", self._path, recursive=True)
