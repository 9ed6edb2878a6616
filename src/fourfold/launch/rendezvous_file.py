"""Where supervisors on several machines meet: the one that leads serves the store, and says where in a file of the run's folder."""

import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fourfold.launch.external import Member
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.addresses import loopback
from fourfold.rendezvous.server import StoreServer

_FILE = ".rendezvous"
"""Port and secret, which the user of this run alone can read."""
_MAX_FILE_BYTES = 4096


@contextmanager
def announced(folder: RunFolder, server: StoreServer, token: str) -> Iterator[None]:
    """Tells the other members where the store of this launch is. `token` names the launch."""
    path = folder.path / _FILE
    try:
        _write_private(path, json.dumps({"start": token, "port": server.port, "secret": server.secret.hex()}))
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def open_store(member: Member) -> StoreServer:
    """The store of a launch. Raises `RunFailure` where the address is not this machine's."""
    return StoreServer(listening_hosts(member), 0 if _is_taken() else member.master_port)


def find_store(folder: RunFolder, token: str) -> tuple[int, bytes] | None:
    """Port and secret of the store, as another member reads them; None while the one that leads has not told them."""
    told = _read(folder)
    port, secret = told.get("port"), told.get("secret")
    if told.get("start") == token and isinstance(port, int) and isinstance(secret, str):
        return (port, bytes.fromhex(secret)) if re.fullmatch(r"[0-9a-f]{64}", secret) else None
    return None


def listening_hosts(member: Member) -> list[str]:
    """Loopback where all ranks are on this machine; else the address given. Where that is loopback here, though ranks elsewhere
    know it by another name, this machine's own name too."""
    if member.is_alone:
        return [loopback()]
    hosts = [member.master_address]
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
