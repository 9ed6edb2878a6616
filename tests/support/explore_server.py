"""A running `fourfold explore`, and a headless Chromium that looks at it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from fourfold.explore.server import PAGE
from tests.support import waiting

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


_COOKIES: dict[str, dict[str, str]] = {}
"""By address: the cookie that the page's own address gives."""


def without_token(printed: str) -> str:
    """The address that a browser shows once it has entered."""
    entered = httpx.get(printed, timeout=None)
    assert entered.status_code == 303, entered.text
    found = re.sub(r"\?token=[\w-]+", "", printed)
    _COOKIES[found.partition("#")[0]] = dict(entered.cookies)
    return found


def cookies_of(address: str) -> dict[str, str]:
    """The cookie of a running server."""
    return _COOKIES[address.partition("#")[0]]


def client_of(address: str) -> httpx.Client:
    """A client that is let in."""
    return httpx.Client(base_url=address.partition("#")[0], cookies=cookies_of(address), timeout=None)


def enter(context: Any, address: str) -> None:
    """Lets a browser's context in, where the address is a server's."""
    cookies = _COOKIES.get(address.partition("#")[0], {})
    context.add_cookies([{"name": name, "value": value, "url": address} for name, value in cookies.items()])


@contextmanager
def running(*arguments: str, folder: Path | None = None) -> Iterator[str]:
    """Starts the command on a free port, in a folder, by default one without runs; gives the address that it prints, without the
    token: `client_of` and `watching` are let in."""
    with printed_by(*arguments, folder=folder) as printed:
        yield without_token(printed)


@contextmanager
def printed_by(*arguments: str, folder: Path | None = None) -> Iterator[str]:
    """Starts the command on a free port; gives the address that it prints."""
    command = [sys.executable, "-m", "fourfold", "explore", *arguments, "--no-browser", "--port", "0"]
    empty = tempfile.TemporaryDirectory()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        cwd=folder or empty.name,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = re.search(r"http://\S+", first)
        if found is None:
            process.wait()
            assert process.stderr is not None
            raise AssertionError(f"no address: {first!r} {process.stderr.read()}")
        yield found[0]
    finally:
        process.terminate()
        process.wait()
        empty.cleanup()


@dataclass
class Watched:
    """A tab and what must not happen in it: messages of the console, errors of the page, requests to elsewhere."""

    tab: Any
    address: str
    faults: list[str] = field(default_factory=list)

    def open(self, place: str = "") -> None:
        """Loads the page at a place such as `#/strategy?layout.tp=2`."""
        self.tab.goto("about:blank")
        self.tab.goto(self.address + place)
        self.tab.wait_for_selector("h1")


@contextmanager
def watching(browser: Any, address: str, **options: Any) -> Iterator[Watched]:
    """A tab of its own on a server, or on a folder of files. Fails where the console has a word, or something is asked of
    another host."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, **options)
    if address.startswith("http"):
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address.rstrip("/"))
    enter(context, address)
    context.set_default_timeout(240_000)  # just under the limit of a test, so that it says what never came
    tab = context.new_page()
    found = Watched(tab, address)
    tab.on("console", lambda message: message.type in ("error", "warning") and found.faults.append(message.text))
    tab.on("pageerror", lambda error: found.faults.append(str(error)))
    ours = (address, "data:", "blob:", "about:")
    tab.on("request", lambda request: request.url.startswith(ours) or found.faults.append(f"asks {request.url}"))
    yield found
    context.close()
    assert found.faults == [], found.faults


def until(tab: Any, expression: str) -> None:
    """Waits for an expression to hold, as long as the suite lets a test last: how long a page takes is the machine's load.
    (`wait_for_function` evaluates text in the page, which its policy forbids.)"""
    waiting.until(lambda: tab.evaluate(expression), message=f"still not: {expression}")


def reads_its_file(tab: Any, path: Path, each: str, count: int) -> None:
    """A board that is emptied and then opened from a file has as many of each (a selector) as before."""
    tab.get_by_role("button", name="Empty it").click()
    until(tab, f"document.querySelectorAll({each!r}).length === 0")
    tab.locator("input[type=file]").set_input_files(path)
    until(tab, f"document.querySelectorAll({each!r}).length === {count}")


def address_now(tab: Any) -> str:
    """The address as the page has it now (`tab.url` is told of it later, by another process)."""
    return tab.evaluate("location.href")


def in_address(tab: Any, text: str) -> None:
    """Waits for a text in the address, which the page writes where a control that was dragged rests."""
    until(tab, f"decodeURIComponent(location.href).includes({json.dumps(text)})")


def needs_page() -> None:
    """Skips, and says so, where the page is not built."""
    if not (PAGE / "index.html").is_file():
        pytest.skip("the page is not built: make page")


def needs_browser() -> str:
    """The path of Chromium. Skips, and says so, where there is none."""
    needs_page()
    pytest.importorskip("playwright", reason="no playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    return CHROMIUM
