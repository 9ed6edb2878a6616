"""`fourfold explore`: the page on which a person changes a layout and sees memory, time and communication change at once."""

import contextlib
import json
import secrets
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
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FILES = 64
"""The processes that compute, and the connections of some browsers."""


def explore(run: str | None = None, /, *, port: int = 4404, host: str = "127.0.0.1", no_browser: Flag = False) -> int:
    """Open a page in the browser: change model, cluster and layout, and see memory, time and communication at once.

    Everything is computed by this command; nothing leaves the machine. Ctrl-C ends it.

    Parameters
    ----------
    run
        The folder of a run, live or finished; or a run file or preset:NAME to begin with. Left out, or no folder: the page Run
        shows the newest run below runs/, where there is one.
    port
        The port to listen on. 0: any that is free.
    host
        The address to listen on. Others than this machine's own need the token that is printed.
    no_browser
        Print the address and open no browser.
    """
    from fourfold.launch.machine import require_packages

    require_packages("explore", "starlette", "uvicorn", extra="explore")
    from fourfold.explore.server import Settings, serve
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
    token = None if host in LOOPBACK else secrets.token_urlsafe(24)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{chosen}/{'' if token is None else f'?token={token}'}{fragment}"
    shown = "" if folder is None else f"the page Run shows {folder}\n"
    print(f"fourfold explore: {address}\n{shown}Ctrl-C ends it", flush=True)
    if not no_browser:
        threading.Timer(0.2, webbrowser.open, [address]).start()
    serve(Settings(host, chosen, token, folder), listener)
    return 0


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
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
        # an answer's body does not wait for the receipt of its head, which the browser sends 40 ms late
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    except OSError as error:
        raise UserError(
            f"--port {port}: {host}:{port} cannot be listened on ({error.strerror}); what works: --port 0"
        ) from None
