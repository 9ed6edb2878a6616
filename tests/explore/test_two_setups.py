"""Two set-ups side by side: pinned from the header of each of their pages, by keys alone, held by the address, on one clock."""

import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from fourfold.api.simulation import simulate
from tests.explore.test_pages import violations
from tests.explore.test_strategy import saved, settled
from tests.support.explore_server import Watched, in_address, until

RUN = {
    "model.preset": "llama3.2-1b",
    "cluster": "h100-24576:32",
    "batch.global_sequences": "64",
    "batch.sequence_length": "2048",
    "precision.compute": "bf16",
    "layout.tp": "4",
    "layout.pp": "2",
    "layout.zero": "1",
}
OTHER = {"layout.tp": "2"}
BOTH = RUN | {"strategy.compare": "1", "strategy.edit": "b"} | {f"b.{key}": value for key, value in OTHER.items()}
FIGURES = {
    "strategy": ["Memory", "Step time", "Network"],
    "pipeline": ["Every rank over time", "Activations of each rank", "The program underneath"],
    "parallelism": ["Tensor parallelism, step by step"],
    "collectives": ["Collectives of the set-up's step"],
    "device": ["Roofline of h100-sxm", "Attention's traffic"],
    "cluster": ["Llama 3 production cluster (Meta)", "Which level carries what", "What flows over the step"],
}  # fmt: skip
"""By page, the figures of a set-up."""


def place(page: str, keys: dict[str, str], **own: str) -> str:
    return f"#/{page}?{urlencode(keys | {f'{page}.{key}': value for key, value in own.items()})}"


def predicted(keys: dict[str, str]) -> Any:
    overrides = {key: int(value) if value.isdecimal() else value for key, value in keys.items() if "." in key}
    return simulate({}, overrides, cluster=keys["cluster"])


def shows_both(tab: Any, page: str) -> None:
    for title in FIGURES[page]:
        for mark in "AB":
            tab.wait_for_selector(f"h2:text-is({json.dumps(f'{title}, {mark}')})")
    until(tab, "document.querySelector('[data-differences]') !== null")


@pytest.mark.parametrize("page", FIGURES)
def test_every_page_of_the_set_up_shows_both_and_says_what_differs(watched: Watched, page: str) -> None:
    watched.open(place(page, BOTH))
    tab = watched.tab
    shows_both(tab, page)
    in_address(tab, "b.layout.tp=2")
    assert "B differs: tp 4 → 2" in tab.locator(".pinned").inner_text()
    told = " ".join(tab.locator("[data-differences]").all_inner_texts())
    assert re.search(r"→ .* ([+−][\d.]+ %|equal)", told), told
    boxes = [tab.locator(f"[data-side={mark}]").first.bounding_box() for mark in "AB"]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]


@pytest.mark.parametrize("page", FIGURES)
def test_a_set_up_is_pinned_swapped_and_cleared_by_keys_alone(watched: Watched, page: str) -> None:
    watched.open(place(page, RUN))
    tab = watched.tab
    tab.get_by_role("button", name="Compare").focus()
    tab.keyboard.press("Enter")
    in_address(tab, "strategy.compare=1")
    assert "B is as A" in tab.locator(".pinned").inner_text()
    watched.open(place(page, BOTH))
    shows_both(tab, page)
    tab.get_by_role("button", name="Swap").focus()
    tab.keyboard.press("Enter")
    until(tab, "/[?&]layout.tp=2/.test(location.hash) && location.hash.includes('b.layout.tp=4')")
    tab.get_by_role("radio", name="A", exact=True).focus()
    tab.keyboard.press("ArrowLeft")
    tab.get_by_role("button", name="Clear B").focus()
    tab.keyboard.press("Enter")
    until(tab, "!location.hash.includes('b.layout') && !location.hash.includes('strategy.')")
    assert "layout.tp=2" in tab.evaluate("location.hash")
    tab.get_by_role("application").or_(tab.locator("main")).first.focus()
    for _ in range(4):
        tab.keyboard.press("Control+z")
    until(tab, "/[?&]layout.tp=4/.test(location.hash)")


def test_the_numbers_are_those_of_each_set_up(watched: Watched) -> None:
    watched.open(place("cluster", BOTH))
    tab = watched.tab
    shows_both(tab, "cluster")
    until(tab, "document.querySelectorAll('.busiest').length === 2")
    for mark, keys in (("A", RUN), ("B", RUN | OTHER)):
        found = json.loads(saved(tab, f"Levels of the network, {mark}", "JSON"))
        assert found["links"] == json.loads(json.dumps(predicted(keys).to_json(advice=False)))["links"]
    told = tab.locator("[data-differences]").first.inner_text()
    first, second = (predicted(keys).step_seconds for keys in (RUN, RUN | OTHER))
    change = re.search(r"step .* ([+−][\d.]+) %", told)
    assert change is not None, told
    assert float(change[1].replace("−", "-")) == pytest.approx(100 * (second / first - 1), abs=0.06)


def test_the_controls_of_a_page_change_b_alone_and_the_address_round_trips(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place("strategy", RUN))
    settled(tab)
    tab.get_by_role("button", name="Compare").click()
    tab.locator("fieldset:has-text('ZeRO') span", has_text="3").first.click()
    until(tab, "location.hash.includes('b.layout.zero=3') && /[?&]layout.zero=1/.test(location.hash)")
    for page in ("cluster", "pipeline", "strategy"):
        tab.locator(f"nav[aria-label=Pages] a[href^='#/{page}']").click()
        shows_both(tab, page)
        held = tab.evaluate("location.hash")
        assert "b.layout.zero=3" in held
        watched.open(held)
        shows_both(tab, page)
        assert tab.evaluate("location.hash") == held
    tab.locator("nav[aria-label=Pages] a[href^='#/tasks']").click()
    tab.wait_for_selector("[data-task]")
    assert tab.locator(".pinned").count() == 0, "a page that is not of the set-up has one"


def test_both_stand_at_one_clock(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place("pipeline", BOTH))
    shows_both(tab, "pipeline")
    assert tab.get_by_label("Time of the cursor").count() == 1
    slider = tab.get_by_label("Time of the cursor")
    slider.evaluate("e => { e.value = e.max / 2; e.dispatchEvent(new Event('input', {bubbles: true})) }")
    figures = [tab.locator(f"[data-side={mark}] figure[data-name^=activations] p.said").inner_text() for mark in "AB"]
    times = [re.split(r"\. Rank", each)[0] for each in figures]
    assert times[0] == times[1] != "At 0 us"
    watched.open(place("cluster", BOTH, moment="30"))
    shows_both(tab, "cluster")
    assert tab.get_by_label("Moment of the step").count() == 1
    until(tab, "[...document.querySelectorAll('p.said')].filter(e => e.textContent.includes('Now, 30 %')).length === 2")


def test_a_refused_b_leaves_a_as_it_is(watched: Watched) -> None:
    watched.open(place("cluster", BOTH | {"b.layout.tp": "3"}))
    tab = watched.tab
    tab.wait_for_selector("[data-side=B] p:has-text('The layout cannot be drawn on it')")
    tab.wait_for_selector("[data-side=A] h2:text-is('What flows over the step, A')")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", FIGURES)
def test_nothing_bars_access_to_two_set_ups(watched: Watched, page: str, theme: str) -> None:
    watched.tab.emulate_media(color_scheme=theme)
    watched.open(place(page, BOTH))
    shows_both(watched.tab, page)
    assert violations(watched.tab) == []


@pytest.mark.parametrize("page", FIGURES)
def test_a_phone_has_one_below_the_other(watched: Watched, page: str) -> None:
    watched.tab.set_viewport_size({"width": 390, "height": 844})
    watched.open(place(page, BOTH))
    tab = watched.tab
    shows_both(tab, page)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    boxes = [tab.locator(f"[data-side={mark}]").first.bounding_box() for mark in "AB"]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
