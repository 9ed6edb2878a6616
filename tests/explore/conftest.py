"""One server and one browser for all tests of the page."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.explore_server import FLAGS, Watched, needs_browser, needs_page, running


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of a running server, which ends with a slash."""
    needs_page()
    with running() as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = needs_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Watched]:
    """A tab of its own. The test fails where the console has a word, or something is asked of another host."""
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address.rstrip("/"))
    tab = context.new_page()
    found = Watched(tab, address)
    tab.on("console", lambda message: message.type in ("error", "warning") and found.faults.append(message.text))
    tab.on("pageerror", lambda error: found.faults.append(str(error)))
    ours = (address, "data:", "blob:", "about:")
    tab.on("request", lambda request: request.url.startswith(ours) or found.faults.append(f"asks {request.url}"))
    yield found
    context.close()
    assert found.faults == []
