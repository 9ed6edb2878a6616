"""The common ground of all tests."""

import signal


def pytest_configure() -> None:
    """Signals do what they do under a shell: a suite started in the background, or under nohup, and all that it starts, would
    otherwise ignore SIGINT or SIGHUP."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are as wide as in a pipe, whatever ran the tests."""
    monkeypatch.setenv("COLUMNS", "160")
