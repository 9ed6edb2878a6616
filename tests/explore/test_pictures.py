"""The pages look as they were stored: `python -m tools.page_pictures` renews the pictures after a change that is meant."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.page_pictures import FOLDER, MOST_UNLIKE, PLACES, THEMES, difference, stored_at, taken


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", PLACES)
def test_a_page_looks_as_it_did(browser: Any, address: str, name: str, theme: str, tmp_path: Path) -> None:
    stored = stored_at(name, theme)
    assert stored.is_file(), f"no picture of {name}: python -m tools.page_pictures {name}"
    share, beside = difference(browser, stored.read_bytes(), taken(browser, address, name, theme))
    file = tmp_path / f"{name}-{theme}.png"
    file.write_bytes(beside)
    assert share <= MOST_UNLIKE, f"{share:.1%} of the blocks differ; stored on the left, now on the right: {file}"


@pytest.mark.parametrize("rule", [
    "figure { visibility: hidden }", ".rail { display: none }", "canvas { visibility: hidden }",
    "dl { flex-direction: column; display: block !important }",
])  # fmt: skip
def test_a_change_is_noticed(browser: Any, address: str, rule: str) -> None:
    share, _ = difference(
        browser, stored_at("pipeline", "light").read_bytes(), taken(browser, address, "pipeline", "light", rule)
    )
    assert share > MOST_UNLIKE


def test_the_pictures_are_small() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {
        stored_at(name, theme).name for name in PLACES for theme in THEMES
    }
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 400_000
