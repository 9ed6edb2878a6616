"""`fourfold explore`: the page on which a person changes a layout and sees memory, time and communication change at once."""

import threading
import webbrowser

from fourfold.cli.options import Flag
from fourfold.config import UserError
from fourfold.config.errors import require_files

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
    from fourfold.explore.entrance import first_look, listening_socket, own_address
    from fourfold.explore.server import LOOPBACK, Settings, serve
    from fourfold.report.page_file import NOT_BUILT, is_built

    require_files("fourfold explore", _FILES)
    if not is_built():
        raise UserError(NOT_BUILT)
    if not 0 <= port <= 65_535:
        raise UserError(f"--port {port}: allowed: 0 to 65535; a value that works: --port 4404")
    folder, fragment = first_look(run, is_private=host in LOOPBACK)
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
