"""The moved program on the page: by keys and by dragging, refused, drawn, undone and opened again by its link."""

from typing import Any

import pytest

from fourfold.explore.board.moves.judged import unmoved
from fourfold.explore.board.moves.link import Order, link_of
from fourfold.explore.board.moves.setting import compiled
from tests.explore.test_moves import HERE, behind, named
from tests.explore.test_pages import violations
from tests.support.explore_server import Watched, in_address


def on_program(watched: Watched, place: str = "") -> Any:
    """The tab with the programs of an address."""
    watched.open(f"#/board?board.part=program{place}")
    watched.tab.locator("[data-program-verdict]").wait_for()
    return watched.tab


def verdict(tab: Any, state: str, words: str = "") -> None:
    """Waits until the page has the verifier's sentence."""
    tab.locator(f"[data-program-verdict={state}]", has_text=words).wait_for()


def choose(tab: Any, rank: int, number: int) -> None:
    """Goes to an instruction of a list by keys."""
    steps = tab.get_by_role("application", name="Instructions of rank").nth(rank)
    steps.focus()
    tab.keyboard.press("Home")
    for _ in range(60):
        if steps.locator(".chosen").get_attribute("data-step") == str(number):
            return
        tab.keyboard.press("ArrowDown")
    raise AssertionError(f"instruction {number} is not there")


def press(tab: Any, key: str, times: int = 1) -> None:
    for _ in range(times):
        tab.keyboard.press(key)


def shown(tab: Any, rank: int = 0) -> Order:
    """The order of a list on the page."""
    steps = tab.get_by_role("application", name="Instructions of rank").nth(rank).locator("[data-step]")
    return tuple(map(int, steps.evaluate_all("all => all.map(each => each.dataset.step)")))


@pytest.mark.page
def test_a_wait_that_keys_move_behind_its_use_is_refused_drawn_and_undone(watched: Watched) -> None:
    of = compiled("prefetch", HERE)
    tab, wait = on_program(watched, "&board.program=prefetch"), named(of, 0, "wait G b0")
    choose(tab, 0, wait)
    press(tab, "Shift+ArrowDown")
    verdict(tab, "refused", "reads params/b0, which G b0 is still filling")
    wrong = tab.locator(".step.wrong").evaluate_all("all => all.map(each => each.dataset.step)")
    assert wrong == [str(named(of, 0, "F b0 m0"))]
    assert str(named(of, 0, "G b0")) in tab.locator(".step.about").evaluate_all("all => all.map(e => e.dataset.step)")
    in_address(tab, f"board.moves={wait}-{wait + 1}")
    assert shown(tab) == behind(of, 0, "wait G b0", "F b0 m0")[0]
    press(tab, "Delete")
    verdict(tab, "refused")
    in_address(tab, f"board.moves={wait}x")
    assert tab.get_by_role("group", name="Taken out of ranks 0, 1").get_by_role("button").count() == 1
    press(tab, "Control+z", 2)
    verdict(tab, "proved")
    assert shown(tab) == unmoved(of).orders[0]


@pytest.mark.page
def test_a_goal_is_begun_reached_by_keys_and_opened_again_by_its_link(watched: Watched) -> None:
    """The count of tokens goes behind the gathers on its stream, and the step is shorter than the compiler's."""
    of = compiled("prefetch", HERE)
    tab = on_program(watched)
    tab.get_by_role("button", name="Begin Beat the compiler within its memory").click()
    goal = tab.locator("[data-goal=shorter]")
    goal.get_by_text("Goal: Beat").wait_for()
    choose(tab, 0, named(of, 0, "N"))
    press(tab, "Shift+ArrowDown", named(of, 0, "wait G embed"))
    tab.locator("[data-goal=shorter][data-reached=true]").wait_for()
    order = behind(of, 0, "N", "wait G embed")
    in_address(tab, f"board.moves={link_of(order, of.lists)}")
    place = tab.evaluate("location.hash")
    watched.open(place)
    tab.locator("[data-goal=shorter][data-reached=true]").wait_for()
    assert shown(tab) == order[0]


@pytest.mark.page
def test_an_instruction_is_dragged_and_nothing_bars_access(watched: Watched) -> None:
    """On light ground and on dark, proved and refused, wide and as narrow as a phone."""
    of = compiled("prefetch", HERE)
    tab, gather = on_program(watched, "&board.program=prefetch"), named(of, 0, "G b1")
    begin = tab.locator(f"[data-step='{gather}']").first.bounding_box()
    end = tab.locator(f"[data-step='{named(of, 0, 'G b0')}']").first.bounding_box()
    tab.mouse.move(begin["x"] + 60, begin["y"] + 12)
    tab.mouse.down()
    tab.mouse.move(end["x"] + 60, end["y"] + 40, steps=4)
    tab.mouse.move(end["x"] + 60, end["y"] + 2, steps=4)
    tab.mouse.up()
    in_address(tab, f"board.moves={gather}-{named(of, 0, 'G b0')}")
    verdict(tab, "proved")
    for place in ("", "&board.program=pipeline&board.moves=:20-15&board.goal=deadlock"):
        for theme in ("light", "dark"):
            for width in (1280, 390):
                tab.set_viewport_size({"width": width, "height": 844})
                tab.emulate_media(color_scheme=theme)
                on_program(watched, place)
                tab.wait_for_load_state("networkidle")
                assert violations(tab) == []
                assert tab.evaluate("document.documentElement.scrollWidth") == width


# Helpers
