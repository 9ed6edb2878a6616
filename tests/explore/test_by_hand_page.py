"""The collective by hand on the page: built by keys, by dragging and by fingers."""

from pathlib import Path
from typing import Any

import pytest

from tests.explore.test_by_hand import answer
from tests.explore.test_pages import violations
from tests.support.explore_server import Watched, address_now, in_address, reads_its_file, until, watching


def on_collective(watched: Watched, place: str = "") -> Any:
    """The tab with the collective of an address, its keys in hand."""
    watched.open(f"#/board?board.part=collective{place}")
    watched.tab.locator("[data-verdict]").wait_for()
    surface(watched.tab).focus()
    return watched.tab


def surface(tab: Any) -> Any:
    """The part that takes the keys."""
    return tab.get_by_role("application", name="ranks hold before step")


def says(tab: Any, state: str, words: str) -> None:
    """Waits until the page has the engine's sentence."""
    found = tab.locator(f"[data-verdict={state}]")
    found.get_by_text(words, exact=False).first.wait_for()


def messages(tab: Any) -> list[str]:
    """The messages on the board, step by step."""
    return tab.locator("[data-message]").evaluate_all("all => all.map(each => each.dataset.message)")


@pytest.mark.page
def test_keys_build_the_ring_all_gather_and_a_message_that_is_taken_away_is_told(
    watched: Watched, tmp_path: Path
) -> None:
    """The link and the file open as the same plan, and undo brings the message back."""
    tab = on_collective(watched, "&board.c.ranks=3")
    for step, turn in enumerate([["0", "1", "2"], ["2", "0", "1"]]):
        for rank, chunk in enumerate(turn):
            tab.keyboard.press("Home")
            for _ in range(3):
                tab.keyboard.press("ArrowUp")
            for _ in range(int(chunk) + 1):
                tab.keyboard.press("ArrowDown")
            for _ in range(rank):
                tab.keyboard.press("ArrowRight")
            tab.keyboard.press(str((rank + 1) % 3))
        if step == 0:
            tab.keyboard.press("n")
    says(tab, "proved", "after 2 steps every rank holds all 3 chunks")
    expected = answer(ranks=3, fill="ring")
    in_address(tab, f"board.c.steps={expected['link'].replace(' ', '+')}")
    assert tab.locator("[data-figure=steps]").inner_text() == "2"
    address = address_now(tab)
    with tab.expect_download() as saved:
        tab.get_by_role("button", name="Save", exact=True).click()
    path = tmp_path / "collective.txt"
    saved.value.save_as(path)
    assert path.read_text(encoding="utf-8") == expected["file"]

    tab.locator("[data-message='K1.1-2']").focus()
    tab.keyboard.press("Delete")
    says(tab, "entry", "step 2: rank 2 sends chunk 1, which it does not hold before this step")
    tab.keyboard.press("Control+z")
    says(tab, "proved", "after 2 steps")
    reads_its_file(tab, path, "[data-message]", 6)
    tab.goto("about:blank")
    tab.goto(address)
    says(tab, "proved", "after 2 steps")


@pytest.mark.page
def test_ranks_change_places_by_keys_and_the_goal_of_few_bytes_is_reached(watched: Watched) -> None:
    tab = on_collective(watched)
    goal = tab.locator("[data-goal=hand-places]")
    goal.get_by_role("button", name="Show the ring").click()
    says(tab, "proved", "after 3 steps")
    goal.get_by_text("not yet below it").wait_for()
    surface(tab).focus()
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("3")
    in_address(tab, "board.c.at=1,1,0,0")
    tab.locator("[data-goal=hand-places][data-reached=true]").wait_for()
    assert tab.locator("[data-figure='between nodes']").inner_text() == "1.50 GB"
    goal.get_by_role("button", name="Show the best").click()
    goal.get_by_text("as good as the best known").wait_for()


@pytest.mark.page
def test_chunks_and_ranks_are_dragged_and_a_fault_is_drawn(watched: Watched) -> None:
    tab = on_collective(watched, "&board.c.kind=all_reduce&board.c.nodes=2")

    def drag(source: str, target: str) -> None:
        for place, act in ((source, tab.mouse.down), (target, tab.mouse.up)):
            box = tab.locator(place).bounding_box()
            x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            tab.mouse.move(x - 3, y, steps=4)
            tab.mouse.move(x, y)
            act()

    drag("[data-cell='0.2']", "[data-cell='1.0']")
    says(tab, "unfinished", "are not summed yet")
    assert messages(tab) == ["A2.0-1"]
    tab.keyboard.press("n")
    drag("[data-cell='1.2']", "[data-cell='0.3']")
    says(tab, "entry", "step 2: rank 0 adds chunk 2 of rank 1, and the sum counts rank 0 twice")
    wrong = tab.locator(".cell.wrong").evaluate_all("all => all.map(each => each.dataset.cell)")
    assert sorted(wrong) == ["0.2", "1.2"]
    drag("[data-rank='0']", "[data-rank='2']")
    in_address(tab, "board.c.at=1,0,0,1")
    tab.keyboard.press("Delete")
    says(tab, "unfinished", "are not summed yet")


@pytest.mark.page
def test_fingers_build_a_collective_on_a_phone(browser: Any, address: str) -> None:
    """No page scrolls sideways, with the most ranks on several nodes, and nothing bars access on light ground and on dark."""
    with watching(browser, address, has_touch=True, is_mobile=True) as watched:
        watched.tab.set_viewport_size({"width": 390, "height": 844})
        tab = on_collective(watched, "&board.c.kind=all_reduce&board.c.ranks=8&board.c.nodes=4")
        tab.locator("[data-cell='0.8']").tap()
        tray = tab.get_by_role("group", name="What is chosen")
        tray.get_by_role("button", name="rank 1", exact=True).tap()
        until(tab, "document.querySelectorAll('[data-message]').length === 1")
        assert messages(tab) == ["A0,1,2,3,4,5,6,7.0-1"]
        tray.get_by_role("button", name="Next step").tap()
        tray.get_by_text("kept").tap()
        tab.locator("[data-cell='1.3']").tap()
        tray.get_by_role("button", name="rank 2", exact=True).tap()
        until(tab, "document.querySelectorAll('[data-message]').length === 2")
        assert messages(tab)[1] == "K3.1-2"
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        for theme in ("light", "dark"):
            tab.emulate_media(color_scheme=theme)
            assert violations(tab) == []


@pytest.mark.page
def test_a_collective_with_a_fault_bars_nobody_and_a_link_that_is_none_says_why(watched: Watched) -> None:
    for theme in ("light", "dark"):
        watched.tab.emulate_media(color_scheme=theme)
        on_collective(watched, "&board.c.nodes=2&board.c.at=0,1,0,1&board.c.steps=K0.0-1+K1.1-2:K3.0-1")
        watched.tab.get_by_role("button", name="Show step 2").click()
        assert violations(watched.tab) == []
    watched.open("#/board?board.part=collective&board.c.steps=K0.0-9")
    watched.tab.get_by_text("there is no rank 9; allowed: 0 to 3").wait_for()
    watched.tab.get_by_role("button", name="Empty the board").click()
    says(watched.tab, "unfinished", "rank 0 lacks chunk 1")


@pytest.mark.page
def test_collectives_leads_to_the_same_collective_by_hand(watched: Watched) -> None:
    watched.open(
        "#/collectives?collectives.kind=reduce_scatter&collectives.ranks=6&collectives.per_node=3&collectives.bytes=1e6"
    )
    watched.tab.get_by_role("link", name="Build it by hand").click()
    says(watched.tab, "unfinished", "in chunk 0 of rank 0 ranks 1, 2, 3, 4 and 5 are not summed yet")
    in_address(watched.tab, "board.c.nodes=2")
    assert watched.tab.locator("[data-rank]").count() == 6
    watched.tab.get_by_text("A schedule", exact=True).click()
    watched.tab.get_by_role("application", name="Board of").wait_for()
