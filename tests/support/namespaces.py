"""Two machines on one: network namespaces with a switch between them, whose ports can be unplugged without either end noticing."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")


class TwoMachines:
    """Namespaces `{name}0` and `{name}1`, joined by a bridge in `{name}s`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._switch = f"{name}s"

    def command(self, machine: int) -> list[str]:
        """Words before a command that run it on a machine."""
        return ["ip", "netns", "exec", f"{self.name}{machine}"]

    def build(self) -> None:
        switch = ["netns", "exec", self._switch, "ip"]
        ip("netns", "add", self._switch)
        ip(*switch, "link", "add", "switch", "type", "bridge")
        ip(*switch, "link", "set", "switch", "up")
        for machine, address in enumerate(ADDRESSES):
            space, port = f"{self.name}{machine}", f"port{machine}"
            ip("netns", "add", space)
            ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for space in (self._switch, f"{self.name}0", f"{self.name}1"):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "delete", space)

    def part(self) -> None:
        """Frames between the machines are lost from now on; both links stay up."""
        ip("-n", self._switch, "link", "set", "port1", "nomaster")

    def join(self) -> None:
        ip("-n", self._switch, "link", "set", "port1", "master", "switch")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def two_machines(name: str) -> Iterator[TwoMachines]:
    """Two machines; skips the test, with the reason, where this process may not make them."""
    machines = TwoMachines(name)
    machines.remove()
    try:
        machines.build()
        yield machines
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        why = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"network namespaces cannot be made here: {why.strip()} (ip of iproute2, and root, are needed)")
    finally:
        machines.remove()
