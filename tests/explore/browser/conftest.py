"""The static site, built once, and served as any folder of files is."""

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.explore_server import needs_browser
from tools.build_page import MODULES
from tools.build_site import build_site


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """`python -m http.server`, without a line for every request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, which ends with a slash."""
    needs_browser()
    if not (MODULES / "pyodide").is_dir():
        pytest.skip("Pyodide is not installed: make page")
    folder: Path = tmp_path_factory.mktemp("site") / "page"
    build_site(folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
