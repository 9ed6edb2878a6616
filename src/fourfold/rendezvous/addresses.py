"""Addresses and interfaces at which the processes of a run reach each other, of IPv4 and IPv6."""

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

LOOPBACKS = ("127.0.0.1", "::1")
_SIOCGIFADDR = 0x8915
_IF_INET6 = Path("/proc/net/if_inet6")


def loopback() -> str:
    """The address of this machine that no other reaches: 127.0.0.1, or ::1 where that is the only one."""
    return next((host for host in LOOPBACKS if _is_here(host)), LOOPBACKS[0])


def _is_here(host: str) -> bool:
    with suppress(OSError), socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return True
    return False


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def interface_to(address: str) -> dict[str, str]:
    """The variable that makes gloo listen on the interface by which this machine reaches an address: left to itself it takes the
    one that the machine's name resolves to. Empty where that is not known; a person's own setting stands."""
    key = "GLOO_SOCKET_IFNAME"
    with suppress(OSError, UnicodeError):
        for family, _, _, _, place in socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(place)  # sends nothing: it asks the kernel for the way
                own = socket.inet_pton(family, probe.getsockname()[0].partition("%")[0])
                name = _interface_v6(own) if family == socket.AF_INET6 else _interface_v4(own, probe)
                if name is not None:
                    return {key: os.environ.get(key, name)}
    return {}


def _interface_v4(own: bytes, probe: socket.socket) -> str | None:
    for _, name in socket.if_nameindex():
        with suppress(OSError):  # an interface without an address
            request = struct.pack("256s", name.encode()[:15])
            if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24] == own:
                return name
    return None


def _interface_v6(own: bytes) -> str | None:
    """Each line of the kernel's table has an address in 32 hexadecimal digits first and an interface's name last."""
    with suppress(OSError):
        rows = [line.split() for line in _IF_INET6.read_text().splitlines()]
        return next((row[-1] for row in rows if row and row[0] == own.hex()), None)
    return None


def loopback_interface() -> dict[str, str]:
    """The variables that keep gloo's and NCCL's own sockets on this machine, where all ranks are on it; a person's own settings
    stand."""
    name = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    keys = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name is not None else ()
    return {key: os.environ.get(key, str(name)) for key in keys}
