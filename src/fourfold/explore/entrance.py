"""The way to the page: the socket that is listened on, the address that is printed, and what the page shows first."""

import contextlib
import json
import socket
from pathlib import Path
from urllib.parse import quote

from fourfold.api.inputs import config_of
from fourfold.config import RunFailure, UserError
from fourfold.config.presets import RUN_PRESET
from fourfold.explore.catalog import flat_overrides
from fourfold.launch.run_folder import RunFolder
from fourfold.report.run_files import check_files

RUNS = Path("runs")
"""The folder of runs that state none, below the current one."""


def first_look(run: str | None, is_private: bool) -> tuple[Path | None, str]:
    """The folder of the run that the page shows, and the part of the address that says where it begins. `is_private`: others cannot
    reach the page, which may then show a run that nobody named. Raises `UserError`."""
    folder = Path(run) if run is not None and Path(run).is_dir() else None
    if folder is not None:
        check_files(folder)
        RunFolder(folder).require_config(trust=True)
        return folder, "#/run"
    fragment = "" if run is None else f"#/strategy?{state_of(run)}"
    return newest_run(RUNS) if is_private else None, fragment


def own_address(host: str) -> str:
    """The address by which other machines most likely reach this one; its name where it has no way out."""
    family, anywhere = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((anywhere, 9))  # sends nothing: it asks the kernel for the way
        return str(probe.getsockname()[0])
    return socket.gethostname()


def newest_run(runs: Path) -> Path | None:
    """The folder in `runs` whose run moved last, of those that are runs; None where there is none."""
    found: list[tuple[float, Path]] = []
    for run in map(RunFolder, runs.glob("*")):
        with contextlib.suppress(UserError, RunFailure, OSError):
            check_files(run.path)
            run.require_config(trust=True)
            found.append((run.metrics.stat().st_mtime, run.path))
    return max(found, default=(0.0, None))[1]


def state_of(run: str) -> str:
    """The page's state that shows this run. Raises `UserError`."""
    config = config_of(run)
    if run.startswith(RUN_PRESET):
        return f"run={quote(run)}"
    keys = {**flat_overrides(config), "cluster": config.cluster.preset}
    return "&".join(f"{key}={quote(_text(value))}" for key, value in keys.items())


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `UserError` where the port is taken."""
    try:
        found = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=2048,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
        # an answer's body does not wait for the receipt of its head, which the browser sends 40 ms late
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    except OSError as error:
        raise UserError(
            f"--port {port}: {host}:{port} cannot be listened on ({error.strerror}); what works: --port 0"
        ) from None
