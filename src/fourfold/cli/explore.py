"""`fourfold explore`: the page on which a person changes a layout and sees memory, time and communication change at once."""

import contextlib
import json
import socket
import threading
import webbrowser
from pathlib import Path
from urllib.parse import quote

from fourfold.cli.options import Flag
from fourfold.config import RunFailure, UserError
from fourfold.config.errors import require_files

RUNS = Path("runs")
"""The folder of runs that state none, below the current one."""
EVERYWHERE = ("0.0.0.0", "::", "")
_FILES = 64
"""The processes that compute, and the connections of some browsers."""


def explore(run: str | None = None, /, *, port: int = 4404, host: str = "127.0.0.1", no_browser: Flag = False) -> int:
    """Open a page in the browser: change model, cluster and layout, and see memory, time and communication at once.

    Everything is computed by this command; nothing leaves the machine. The address has a token: without it nobody, no other user
    of this machine either, is answered. Ctrl-C ends it.

    Parameters
    ----------
    run
        The folder of a run, live or finished; or a run file or preset:NAME to begin with. Left out, or no folder: the page Run
        shows the newest run below runs/, where there is one.
    port
        The port to listen on. 0: any that is free.
    host
        The address to listen on; 0.0.0.0: every address of this machine, for other machines too. Nothing is encrypted.
    no_browser
        Print the address and open no browser.
    """
    from fourfold.launch.machine import require_packages

    require_packages("explore", "starlette", "uvicorn", extra="explore")
    from fourfold.explore.server import LOOPBACK, Settings, serve
    from fourfold.launch.run_folder import RunFolder
    from fourfold.report.page_file import NOT_BUILT, is_built
    from fourfold.report.run_files import check_files

    require_files("fourfold explore", _FILES)
    if not is_built():
        raise UserError(NOT_BUILT)
    if not 0 <= port <= 65_535:
        raise UserError(f"--port {port}: allowed: 0 to 65535; a value that works: --port 4404")
    folder = Path(run) if run is not None and Path(run).is_dir() else None
    if folder is not None:
        check_files(folder)
        RunFolder(folder).require_config(trust=True)
    fragment = "" if run is None else "#/run" if folder is not None else f"#/strategy?{_state(run)}"
    if folder is None and host in LOOPBACK:  # others see a run only where the command names it
        folder = newest_run(RUNS)
    listener = listening_socket(host, port)
    chosen = int(listener.getsockname()[1])
    settings = Settings(host, chosen, run=folder)
    lines = [f"fourfold explore: {settings.address(settings.token)}{fragment}"]
    if host in EVERYWHERE:
        lines.append(f"other machines:   {settings.address(settings.token, own_address(host))}{fragment}")
    lines += [] if folder is None else [f"the page Run shows {folder}"]
    print("\n".join([*lines, "Ctrl-C ends it"]), flush=True)
    if not no_browser:
        threading.Timer(0.2, webbrowser.open, [settings.address(settings.ticket) + fragment]).start()
    serve(settings, listener)
    return 0


def own_address(host: str) -> str:
    """The address by which other machines most likely reach this one; its name where it has no way out."""
    family, anywhere = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((anywhere, 9))  # sends nothing: it asks the kernel for the way
        return str(probe.getsockname()[0])
    return socket.gethostname()


def newest_run(runs: Path) -> Path | None:
    """The folder in `runs` whose run moved last, of those that are runs; None where there is none."""
    from fourfold.launch.run_folder import RunFolder
    from fourfold.report.run_files import check_files

    found: list[tuple[float, Path]] = []
    for run in map(RunFolder, runs.glob("*")):
        with contextlib.suppress(UserError, RunFailure, OSError):
            check_files(run.path)
            run.require_config(trust=True)
            found.append((run.metrics.stat().st_mtime, run.path))
    return max(found, default=(0.0, None))[1]


def _state(run: str) -> str:
    """The page's state that shows this run. Raises `UserError`."""
    from fourfold.api.inputs import config_of
    from fourfold.config.presets import RUN_PRESET
    from fourfold.explore.catalog import flat_overrides

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
