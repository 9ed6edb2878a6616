"""Tests of real runs take as long as the machine lets them: their laws are in seconds that a launch could use, not in these."""

import pytest

SECONDS = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "supervise" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
