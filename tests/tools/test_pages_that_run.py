"""Pages of the documentation whose commands are run: they show what is printed."""

from pathlib import Path

import pytest

from tools.transcripts import true_page

pytestmark = pytest.mark.docs

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["../README.md", *sorted(path.name for path in DOCS.glob("*.md") if "<!-- run" in path.read_text())]


def test_the_first_hour_is_among_them() -> None:
    assert "first-hour.md" in PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_its_commands_print(page: str) -> None:
    assert true_page(DOCS / page) == (DOCS / page).read_text(), (
        f"what works: python -m tools.transcripts docs/{page} --write"
    )
