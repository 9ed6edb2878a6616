"""A record of what tests reach: the lines of `src` that each executes, here and in every process that it starts (contexts of
coverage), and the time that it takes. A plugin of pytest, off until asked for: `-p tests.support.reach`; `tools.reach` reads it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = "FOURFOLD_REACH"
"""The variable with the folder that data goes to. coverage starts in each process by itself, told by `COVERAGE_PROCESS_START`."""


def enter(context: str) -> None:
    """From here on this process executes lines for `context`, a test's name; processes that it starts do so by the variable."""
    os.environ["PYTEST_CURRENT_TEST"] = context
    if FOLDER in os.environ:
        from coverage import Coverage

        current = Coverage.current()
        if current is not None:
            current.switch_context(context)


def pytest_configure() -> None:
    """A fork of this process goes on with the test that made it: coverage starts again there, without a context."""
    os.register_at_fork(after_in_child=lambda: enter(os.environ.get("PYTEST_CURRENT_TEST", "")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = os.times()
    result = yield
    after = os.times()
    enter("")
    row = {"test": item.nodeid, "wall": after.elapsed - before.elapsed, "cpu": sum(after[:4]) - sum(before[:4])}
    with open(Path(os.environ[FOLDER]) / f"times-{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    enter(f"{item.nodeid} (setup)")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    enter(f"{item.nodeid} (call)")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    enter(f"{item.nodeid} (teardown)")
    return (yield)
