"""Where ranks that another launcher started meet: rank 0 serves the store, and says where in a file of the run's folder."""

import ipaddress
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fourfold.config import RunFailure
from fourfold.launch.external import ExternalRank
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.frames import SECRET
from fourfold.rendezvous.server import LOOPBACK, StoreServer

_FILE = ".rendezvous"
"""Port and secret, which the user of this run alone can read."""
_MAX_FILE_BYTES = 4096
_POLL_SECONDS = 0.2


@contextmanager
def serving(folder: RunFolder, external: ExternalRank, token: str) -> Iterator[dict[str, str]]:
    """Serves the store of a launch from this process, rank 0's; the variables by which its worker finds it. `token` names the
    launch. Raises `RunFailure` where the address is not this machine's."""
    server = StoreServer(listening_hosts(external), 0 if _is_taken() else external.master_port)
    server.start()
    path = folder.path / _FILE
    try:
        _write_private(path, json.dumps({"start": token, "port": server.port, "secret": server.secret.hex()}))
        yield {"MASTER_PORT": str(server.port), SECRET: server.secret.hex()}
    finally:
        with suppress(OSError):
            path.unlink()
        server.close()


def find_store(folder: RunFolder, external: ExternalRank, token: str, timeout_seconds: float) -> dict[str, str]:
    """The variables by which another rank's worker finds the store. Raises `RunFailure` where rank 0 does not serve it in time."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        told = _read(folder)
        if told.get("start") == token:
            port, secret = told.get("port"), told.get("secret")
            if isinstance(port, int) and isinstance(secret, str) and re.fullmatch(r"[0-9a-f]{64}", secret):
                return {"MASTER_PORT": str(port), SECRET: secret}
        if time.monotonic() > deadline:
            raise RunFailure(
                f"{folder.path / _FILE}: rank {external.rank} waited {timeout_seconds:.0f} s for rank 0 to write it; all ranks "
                f"must run as one user, who alone may read it"
            )
        time.sleep(_POLL_SECONDS)


def listening_hosts(external: ExternalRank) -> list[str]:
    """Loopback where all ranks are on this machine; else the address given. Where that is loopback here, though ranks elsewhere
    know it by another name, this machine's own name too."""
    if external.is_alone:
        return [LOOPBACK]
    hosts = [external.master_address]
    if _is_loopback(hosts[0]) and not _is_loopback(socket.gethostname()):
        hosts.append(socket.gethostname())
    return hosts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0]).is_loopback
    except (OSError, ValueError):  # unknown: nothing to listen on
        return True


def _is_taken() -> bool:
    """Whether torchrun's agent listens on the port that it names."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _write_private(path: os.PathLike[str], text: str) -> None:
    aside = f"{os.fspath(path)}.{os.getpid()}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(aside)
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(aside, path)


def _read(folder: RunFolder) -> dict[str, object]:
    with suppress(OSError, ValueError, RecursionError), open(folder.path / _FILE, "rb") as file:
        told = json.loads(file.read(_MAX_FILE_BYTES))
        if isinstance(told, dict):
            return told
    return {}
