"""The guided tour in a real browser: every scene drives its figure, has an address, and is read on a phone and by keyboard."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fourfold.explore.glossary import glossary
from tests.explore.test_pages import violations
from tests.support.explore_server import Watched, address_now, in_address, until

TOUR = Path(__file__).parents[2] / "src/fourfold/explore/page/src/pages/tour"
SCENES = re.findall(r"^  (\w+),$", (TOUR / "scenes/index.ts").read_text().partition("scenes: readonly")[2], re.M)
CLAIMS = re.findall(r'^    id: "([\w-]+)"', (TOUR / "claims.ts").read_text(), re.M)
PHONE = {"width": 390, "height": 844}
DRAWN = "document.querySelector('.room[data-ready=true]') !== null"
TOLD = "[...document.querySelectorAll('{} [data-number]')].every(each => !each.textContent.includes('…'))"


def guessed(watched: Watched, names: list[str]) -> None:
    """Lets the browser know that these questions were asked before."""
    watched.open("#/tasks")
    watched.tab.evaluate(f"localStorage.setItem('fourfold-tour', {json.dumps(json.dumps(dict.fromkeys(names, '')))})")


def scene(watched: Watched, name: str, more: str = "") -> Any:
    """The scene, drawn, with all its numbers."""
    watched.open(f"#/tour?tour.scene={name}{more}")
    section = watched.tab.locator(f"section[data-scene={name}]")
    section.wait_for()
    until(watched.tab, DRAWN)
    until(watched.tab, TOLD.format(f"section[data-scene={name}]"))
    return section


def test_terms_of_the_sentences_are_the_glossarys() -> None:
    known = {each["slug"] for each in glossary()}
    sources = [path.read_text() for path in [TOUR / "claims.ts", *(TOUR / "scenes").glob("*.ts")]]
    named = {slug for text in sources for slug in re.findall(r"\[[^\]\n]+\]\(([\w-]+)\)", text)}
    assert len(named) > 10
    assert named <= known


@pytest.mark.smoke
def test_every_scene_is_reached_by_keys_and_draws_its_figure(watched: Watched) -> None:
    guessed(watched, SCENES)
    watched.open("#/tour")
    assert len(SCENES) >= 12
    for number, name in enumerate(SCENES):
        if number > 0:
            watched.tab.keyboard.press("ArrowRight")
            in_address(watched.tab, f"tour.scene={name}")
        until(watched.tab, DRAWN)
        until(watched.tab, TOLD.format(f"section[data-scene={name}]"))
        assert watched.tab.locator(".figure figure, .figure dl").count() > 0, name
        assert watched.tab.locator("[aria-current=step]").count() == 1
    watched.tab.keyboard.press("ArrowLeft")
    in_address(watched.tab, f"tour.scene={SCENES[-2]}")


def test_a_scene_asks_before_it_shows(watched: Watched) -> None:
    watched.open("#/tour?tour.scene=roofline")
    section = watched.tab.locator("section[data-scene=roofline]")
    section.locator("input[type=range]").fill("0.5")
    assert section.locator(".line").count() == 0
    assert watched.tab.locator(".veil").count() == 1
    section.get_by_role("button", name="That is my guess").click()
    section.locator("[data-verdict] .so").wait_for()
    assert "295 FLOP" in section.locator("[data-verdict]").inner_text()
    assert "you guessed 100 FLOP: 3 times too little" in section.locator("[data-verdict]").inner_text()
    assert watched.tab.locator(".veil").count() == 0


def test_a_number_in_the_text_changes_figure_and_answers(watched: Watched) -> None:
    guessed(watched, SCENES)
    section = scene(watched, "pipeline")
    knob = section.get_by_role("slider", name="Microbatches").first
    bubble = section.locator("[data-number=bubble]")
    before = bubble.inner_text()
    box = knob.bounding_box()
    middle = box["y"] + box["height"] / 2
    watched.tab.mouse.move(box["x"] + 5, middle)
    watched.tab.mouse.down()
    watched.tab.mouse.move(box["x"] + 5 + 2 * 18, middle, steps=6)
    watched.tab.mouse.up()
    in_address(watched.tab, "tour.pipeline.batches=64")
    until(watched.tab, "document.querySelector('.figure .said').textContent.includes('64 microbatches')")
    until(watched.tab, f"document.querySelector('[data-number=bubble]').textContent !== {json.dumps(before)}")
    assert re.sub(r"\s", " ", bubble.inner_text()) == "19.0 %"  # 15/79, as the closed form says
    knob.focus()
    watched.tab.keyboard.press("Home")
    in_address(watched.tab, "tour.pipeline.batches=4")


def test_a_sentence_lights_its_part_of_the_figure(watched: Watched) -> None:
    guessed(watched, SCENES)
    section = scene(watched, "state")
    assert watched.tab.locator(".ring").count() == 0
    section.locator(".line").nth(1).hover()
    until(watched.tab, "document.querySelectorAll('.ring').length > 0")
    assert section.locator(".line.lit").count() == 1
    section.locator("h2").hover()
    until(watched.tab, "document.querySelectorAll('.ring').length === 0")
    section.locator("[data-number=optimizer]").click()
    section.locator("h2").hover()
    until(watched.tab, "document.querySelectorAll('.ring').length > 0")


def test_an_address_opens_a_scene_as_it_was(watched: Watched) -> None:
    guessed(watched, SCENES)
    section = scene(watched, "zero", "&tour.zero.stage=1&tour.at=0.7")
    assert section.bounding_box()["y"] < 450
    assert section.get_by_role("slider", name="ZeRO stage").first.inner_text() == "ZeRO-1"
    assert "ZeRO-1" in watched.tab.locator(".figure h2").first.inner_text()
    assert "70 %" in watched.tab.locator(".clock output").inner_text()
    assert "model.preset" not in address_now(watched.tab)


def test_the_clock_goes_on_from_scene_to_scene(watched: Watched) -> None:
    guessed(watched, SCENES)
    scene(watched, "pipeline")
    watched.tab.locator(".clock input").fill("0.8")
    in_address(watched.tab, "tour.at=0.8")
    watched.tab.get_by_role("button", name="Next scene").click()
    in_address(watched.tab, "tour.scene=halves")
    until(watched.tab, "document.querySelector('.clock output')?.textContent.includes('80 %')")


@pytest.mark.parametrize("name", [*SCENES, "claims"])
def test_a_phone_shows_figure_and_text_without_scrolling_sideways(watched: Watched, name: str) -> None:
    watched.tab.set_viewport_size(PHONE)
    guessed(watched, SCENES)
    if name == "claims":
        watched.open("#/tour?tour.scene=claims")
    else:
        scene(watched, name)
        assert watched.tab.locator(".figure").bounding_box()["height"] <= 0.41 * PHONE["height"]
    assert watched.tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("name", ["pipeline", "cluster", "claims"])
def test_nothing_bars_access_to_the_tour(watched: Watched, name: str) -> None:
    """With answers; as it opens, with questions, the page is among all pages."""
    guessed(watched, [*SCENES, *(f"claims.{each}" for each in CLAIMS[:3])])
    for theme in ("light", "dark"):
        watched.tab.emulate_media(color_scheme=theme)
        if name == "claims":
            watched.open("#/tour?tour.scene=claims")
            until(watched.tab, TOLD.format("article"))
        else:
            scene(watched, name)
        assert violations(watched.tab) == []


def test_paper_has_the_scene_without_what_changes_it(watched: Watched) -> None:
    guessed(watched, SCENES)
    scene(watched, "run")
    watched.tab.emulate_media(media="print")
    assert not watched.tab.locator("nav[aria-label=Pages]").is_visible()
    assert watched.tab.locator(".figure figure").first.is_visible()


def test_claims_are_judged_by_the_answers(watched: Watched) -> None:
    guessed(watched, [f"claims.{name}" for name in CLAIMS])
    watched.open("#/tour?tour.scene=claims")
    until(watched.tab, f"document.querySelectorAll('[data-verdict] .so').length === {len(CLAIMS)}")
    until(watched.tab, TOLD.format("article"))
    verdicts = {
        name: watched.tab.locator(f"[data-claim='{name}'] [data-verdict] .so").inner_text()
        for name in ("days", "zero3", "1f1b", "recompute", "tp")
    }
    assert verdicts == {"days": "wrong", "zero3": "wrong", "1f1b": "wrong", "recompute": "right", "tp": "in part"}
