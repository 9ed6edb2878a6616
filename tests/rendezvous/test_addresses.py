"""Processes of a run meet on whatever loopback their machine has, and find the interface to another of either family."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fourfold.rendezvous import addresses, server
from fourfold.rendezvous.addresses import interface_to, loopback

ALONE = "import socket; from fourfold.rendezvous.server import StoreServer; s = StoreServer(); print(s.host, s.port > 0); s.close()"


def in_namespace(*setup: str) -> list[str]:
    """Words before a command that run it on a machine with a loopback interface alone; skips where this process may make none."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("this process may make no network namespace")
    return ["unshare", "-rn", "sh", "-c", "; ".join((*setup, 'exec "$@"')), "sh"]


@pytest.mark.parametrize(
    ("setup", "host"),
    [
        (("ip link set lo up",), "127.0.0.1"),
        (("ip link set lo up", "ip address delete 127.0.0.1/8 dev lo"), "::1"),
    ],
    ids=["both", "::1 alone"],
)
def test_a_store_listens_on_the_loopback_that_there_is(setup: tuple[str, ...], host: str) -> None:
    done = subprocess.run([*in_namespace(*setup), sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.stdout == f"{host} True\n", done.stderr


def test_a_machine_without_any_loopback_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_is_here", lambda host: False)
    monkeypatch.setattr(server.socket.socket, "bind", _refuse)
    assert loopback() == "127.0.0.1"
    with pytest.raises(server.RunFailure, match=r"neither 127.0.0.1 nor ::1; what works: ip link set lo up"):
        server.StoreServer()


def _refuse(self: socket.socket, place: object) -> None:
    raise OSError(99, "Cannot assign requested address")


@pytest.mark.parametrize("host", [host for host in addresses.LOOPBACKS if addresses._is_here(host)])
def test_the_interface_to_an_address_of_either_family(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert interface_to(host) == {"GLOO_SOCKET_IFNAME": "lo"}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    assert interface_to(host) == {"GLOO_SOCKET_IFNAME": "mine"}


def test_an_address_that_is_none_has_no_interface() -> None:
    assert interface_to("no such host.invalid") == {}


@pytest.mark.rest
def test_a_run_trains_where_there_is_no_other_loopback(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.support.supervised import Supervised, write_run

    prefix = in_namespace("ip link set lo up", "ip address delete 127.0.0.1/8 dev lo")
    with Supervised(write_run(tmp_path, 4), tmp_path / "run", prefix=prefix) as run:
        assert run.finish() == 0, run.printed
        assert [event["step"] for event in run.events("save")] == [4]
