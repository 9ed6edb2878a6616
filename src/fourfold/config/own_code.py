"""The code of fourfold that a process runs: the version of the package, and a digest of its source files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]
_SHOWN = 12


@dataclass(frozen=True)
class OwnCode:
    """`digest`: SHA-256 over path and bytes of every Python file of the package; empty where the package has none. A clone that is
    installed in place may change while a process goes on: the digest is of the files as they are when it is asked for first."""

    version: str
    digest: str

    def __str__(self) -> str:
        return f"fourfold {self.version}, code {self.digest[:_SHOWN] or 'unknown'}"

    def differs(self, other: "OwnCode") -> bool:
        """Whether the other is known, and not this one."""
        return bool(self.digest and other.digest) and self != other


@cache
def own_code() -> OwnCode:
    """The code that this process runs. It takes some 30 ms once a process."""
    try:
        own = version("fourfold")
    except PackageNotFoundError:  # run from its source folder
        own = "unknown"
    return OwnCode(own, source_digest(_PACKAGE))


def source_digest(package: Path) -> str:
    """SHA-256 over the Python files below a folder; empty where there are none."""
    total, is_empty = sha256(), True
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "node_modules"))
        for path in sorted(Path(folder, name) for name in names if name.endswith(".py")):
            content = path.read_bytes()
            total.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode())
            total.update(content)
            is_empty = False
    return "" if is_empty else total.hexdigest()


def code_in(info: Mapping[str, Any]) -> OwnCode:
    """The code that a checkpoint's `info` names; without a digest where it names none."""
    versions = info.get("versions")
    stated = versions.get("fourfold") if isinstance(versions, Mapping) else ""
    return OwnCode(str(stated or "unknown")[:80], str(info.get("code") or "")[:64])
