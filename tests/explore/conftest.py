"""One server and one browser for all tests of the page."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.explore_server import FLAGS, Watched, needs_browser, needs_page, running, watching


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
    with watching(browser, address) as found:
        yield found
