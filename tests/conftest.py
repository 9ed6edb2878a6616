"""The common ground of all tests."""

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.support.grid import Slice, mark_cases_beyond_a_cover

settings.register_profile("repeatable", derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", metavar="K/N", type=Slice.parse, help="only slice K of N, which together are all tests")


def pytest_configure(config: pytest.Config) -> None:
    """Laws are tried on the same examples every time, so that what fell once falls again, and a suite is green or red for what was
    changed; `--hypothesis-profile=default` draws others. Signals do what they do under a shell: a suite started in the background,
    or under nohup, and all that it starts, would otherwise ignore SIGINT or SIGHUP."""
    if not config.getoption("--hypothesis-profile", None):
        settings.load_profile("repeatable")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before `-m` chooses: what a cover does without is `rest`, what needs a browser `page`, but for the smokes. Then the slice."""
    mark_cases_beyond_a_cover(items)
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("smoke"):
            item.add_marker(pytest.mark.page)
    chosen: Slice | None = config.getoption("--slice")
    if chosen is not None:
        items[:] = [item for item in items if chosen.holds(item.nodeid)]


@pytest.fixture(autouse=True)
def _screen_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines have the length that they have in a pipe, whatever ran the tests."""
    monkeypatch.setenv("COLUMNS", "160")
