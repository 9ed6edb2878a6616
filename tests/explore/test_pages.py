"""Every page in a real browser: it opens without an error, has no fault of access, and says where it is."""

from pathlib import Path
from typing import Any

import pytest

from fourfold.explore.server import PAGE
from tests.support.explore_server import Watched, in_address, until

PAGES = (
    "strategy", "pipeline", "parallelism", "collectives", "device", "cluster", "run", "tasks", "board", "accuracy", "tour",
)  # fmt: skip
READY = {
    "strategy": "figure", "parallelism": "figure svg", "collectives": "figure:has-text('of the set-up') .pick",
    "cluster": ".busiest", "device": "h2:has-text('Attention\\'s traffic')", "accuracy": "circle",
}  # fmt: skip
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
    for key, name in (("", "tasks"), ("1", "strategy"), ("6", "cluster")):
        if key:
            watched.tab.keyboard.press(key)
        link = watched.tab.locator("nav a[aria-current=page]")
        link.get_by_text(name, exact=False).wait_for()
        box = link.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= pixels


@pytest.mark.parametrize("pixels", [1280, 1360])
def test_a_desk_shows_all_pages(watched: Watched, pixels: int) -> None:
    watched.tab.set_viewport_size({"width": pixels, "height": 800})
    watched.open("#/tour")
    right = watched.tab.locator("header .tools").bounding_box()["x"]
    links = watched.tab.locator("nav[aria-label=Pages] a")
    boxes = [link.bounding_box() for link in links.all()]
    assert len(boxes) == len(PAGES)
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= right for box in boxes)


def test_keys_open_the_pages_in_the_navigation_s_order(watched: Watched) -> None:
    watched.open("#/tour")
    assert [text.lower() for text in watched.tab.locator("nav[aria-label=Pages] a").all_inner_texts()] == [*PAGES]
    for key, name in enumerate(PAGES[:9], 1):
        watched.tab.keyboard.press(str(key))
        in_address(watched.tab, f"#/{name}")


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("run", "tasks", "board", "tour")])
def test_every_figure_has_a_link_to_it(watched: Watched, name: str) -> None:
    """A click copies it, and who opens it sees that figure, whatever stands above it."""
    tab = watched.tab
    watched.open(f"#/{name}{FEWER.get(name, '')}")
    tab.wait_for_selector(READY.get(name, "figure"))
    tab.wait_for_load_state("networkidle")
    names = [figure.get_attribute("data-name") for figure in tab.locator("figure").all()]
    assert len(names) == len({*names}) > 0
    for figure in names:
        tab.locator(f"figure[data-name='{figure}'] a[title='Copy a link to this figure']").click()
        until(tab, f"document.querySelector(\"figure[data-name='{figure}'] a[title='Link copied']\") !== null")
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert f"figure={names[-1]}" in copied
    watched.open(copied[copied.index("#") :])
    until(tab, f"(top => 0 <= top && top < innerHeight - 100)({top_of(names[-1])})")


def top_of(figure: str) -> str:
    return f"document.querySelector(\"figure[data-name='{figure}']\")?.getBoundingClientRect().top"


@pytest.mark.parametrize(("old", "page", "figure"), [
    ("#/collectives?collectives.block=2", "parallelism", "block"),
    ("#/collectives?collectives.cp=2&collectives.turn=0", "parallelism", "ring"),
    ("#/collectives?collectives.exchange=1", "parallelism", "experts"),
    ("#/collectives?collectives.moment=30", "parallelism", "zero-3"),
    ("#/cluster?cluster.segment=head", "device", "roofline"),
    ("#/cluster?cluster.frame=9&cluster.heads=4", "device", "attention"),
])  # fmt: skip
def test_an_address_of_before_opens_its_figure_on_its_new_page(
    watched: Watched, old: str, page: str, figure: str
) -> None:
    """From a bookmark, from a link on the page (the way back leads to where one was), and as a figure alone."""
    tab = watched.tab
    shown = f"figure[data-name='{figure}']"
    watched.open(old)
    tab.wait_for_selector(shown)
    assert tab.locator("nav a[aria-current=page]").inner_text().lower() == page
    watched.open("#/board")
    tab.evaluate("hash => { location.hash = hash }", old)
    tab.wait_for_selector(shown)
    in_address(tab, f"#/{page}?")
    tab.go_back()
    in_address(tab, "#/board")
    tab.goto("about:blank")
    tab.goto(f"{watched.address}?embed={figure}{old.partition('?')[0]}")
    tab.wait_for_selector(f"{shown}.alone")


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
