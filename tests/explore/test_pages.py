"""Every page in a real browser: it opens without an error, has no fault of access, and says where it is."""

from pathlib import Path
from typing import Any

import pytest

from fourfold.explore.server import PAGE
from tests.support.explore_server import Watched

PAGES = ("strategy", "pipeline", "collectives", "cluster", "run", "tasks", "board", "accuracy", "tour")
READY = {"strategy": "figure", "accuracy": "circle", "cluster": "h2:has-text('Attention\\'s traffic')"}
"""Selectors of a page that is drawn in full."""
FEWER = {"accuracy": "?accuracy.software=llm.c"}
"""Where a page has hundreds of things to press, each of which axe-core takes its time over."""
AXE = Path(PAGE).with_name("page") / "node_modules/axe-core/axe.min.js"


@pytest.mark.smoke
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_from_its_address(watched: Watched, name: str) -> None:
    watched.open(f"#/{name}")
    assert watched.tab.title().lower().startswith(name)
    assert watched.tab.locator("nav a[aria-current=page]").inner_text().lower() == name


@pytest.mark.parametrize("pixels", [390, 320])
def test_a_phone_shows_which_page_is_open(watched: Watched, pixels: int) -> None:
    """From its address, and after another page was taken."""
    watched.tab.set_viewport_size({"width": pixels, "height": 800})
    watched.open("#/tasks")
    for key, name in (("", "tasks"), ("1", "strategy"), ("4", "cluster")):
        if key:
            watched.tab.keyboard.press(key)
        link = watched.tab.locator("nav a[aria-current=page]")
        link.get_by_text(name, exact=False).wait_for()
        box = link.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= pixels


def violations(tab: Any) -> list[tuple[str, str]]:
    """Faults that axe-core finds: rules of WCAG 2.1 A and AA, contrast among them, and its best practices."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make page")
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in tab.evaluate("axe.run()")["violations"]]


@pytest.mark.parametrize("name", PAGES)
def test_nothing_bars_access(watched: Watched, name: str) -> None:
    """On light ground and on dark."""
    for theme in ("light", "dark"):
        watched.tab.emulate_media(color_scheme=theme)
        watched.open(f"#/{name}{FEWER.get(name, '')}")
        watched.tab.wait_for_selector(READY.get(name, "h1"))
        assert violations(watched.tab) == []


def test_the_keyboard_alone_goes_through_the_pages(watched: Watched) -> None:
    watched.open("#/strategy")
    watched.tab.keyboard.press("2")
    watched.tab.wait_for_selector("h1:has-text('Pipeline')")
    watched.tab.keyboard.press("Tab")
    assert watched.tab.evaluate("document.activeElement.textContent").strip() == "Skip to the page"
    watched.tab.keyboard.press("Enter")
    assert watched.tab.evaluate("document.activeElement.id") == "main"
