"""The page that ships: what a browser loads before it shows any of the pages, in bytes as they travel."""

import gzip
import re
from pathlib import Path

import fourfold.explore

DIST = Path(fourfold.explore.__file__).parent / "dist"
MOST_BYTES = 200_000
FILE = r"[\w.-]+\.(?:js|css)"


def first_files() -> set[str]:
    """Everything that index.html names itself."""
    return set(re.findall(rf"\./assets/({FILE})", (DIST / "index.html").read_text()))


def with_imports(files: set[str]) -> set[str]:
    """Files and what they import at once, and so on: what waits to be asked for is left out."""
    found, new = set[str](), set(files)
    while new:
        found |= new
        texts = [(DIST / "assets" / name).read_text() for name in new if name.endswith(".js")]
        new = {name for text in texts for name in re.findall(rf'(?:from|import)"\./({FILE})"', text)} - found
    return found


def travelling_bytes(files: set[str]) -> int:
    return sum(len(gzip.compress((DIST / "assets" / name).read_bytes())) for name in files)


def page_files() -> dict[str, set[str]]:
    """The files of every page that the entry asks for when it is opened: by their script."""
    entry = next(name for name in first_files() if name.startswith("index-") and name.endswith(".js"))
    text = (DIST / "assets" / entry).read_text()
    listed = re.search(r"m\.f=\[(.*?)\]", text)
    assert listed is not None
    names = re.findall(rf'"\./({FILE})"', listed[1])
    pages = {}
    for page, numbers in re.findall(rf'import\(["`]\./({FILE})["`]\)[^,]*,__vite__mapDeps\(\[([\d,]*)\]\)', text):
        pages[page] = {page} | {names[int(number)] for number in numbers.split(",") if number}
    return pages


def test_no_page_loads_more_than_200_kilobytes_at_first() -> None:
    pages = page_files()
    assert {page.split("-")[0] for page in pages} >= {"Strategy", "Pipeline", "Run", "Board", "Accuracy", "Tour"}
    for page, files in pages.items():
        size = travelling_bytes(with_imports(first_files() | files))
        assert 10_000 < size < MOST_BYTES, (page, size)
