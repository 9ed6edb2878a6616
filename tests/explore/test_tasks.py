"""The tasks page in a browser: two tasks are solved by keyboard alone, hints come one at a time, progress stays."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from fourfold.explore.setup import body_of, read_setup
from fourfold.explore.tasks.document import judged, tasks_document
from fourfold.explore.tasks.task import task_named
from tests.explore.test_pages import violations
from tests.explore.test_strategy import until
from tests.support.explore_server import Watched

TASKS = {task["id"]: task for track in tasks_document()["tracks"] for task in track["tasks"]}


def place(name: str, changes: dict[str, str] | None = None) -> str:
    return f"#/tasks?{urlencode({**TASKS[name]['start'], 'tasks.id': name, **(changes or {})})}"


def opened(watched: Watched, name: str, changes: dict[str, str] | None = None) -> Any:
    """A task of which the first judgement has come, without a guess."""
    watched.open(place(name, changes))
    watched.tab.get_by_role("button", name="Show me").click()
    watched.tab.wait_for_selector(".result h2")
    return watched.tab


def tab_to(tab: Any, expression: str) -> None:
    """Presses Tab until an expression of the focused element holds."""
    for _ in range(120):
        if tab.evaluate(f"(element => {expression})(document.activeElement)"):
            return
        tab.keyboard.press("Tab")
    raise AssertionError(f"Tab does not come to {expression}")


def test_two_tasks_are_solved_by_keyboard_alone(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/tasks")
    tab.wait_for_selector("[data-task]")
    tab_to(tab, "element.matches('a.primary')")
    assert "Eight copies" in tab.evaluate("document.activeElement.textContent")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("h1:has-text('Eight copies')")
    tab_to(tab, "element.matches('input[type=range]')")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("[data-verdict] b:has-text('139')")
    tab.wait_for_selector(".result h2:has-text('too much')")
    tab_to(tab, "element.matches('input[type=radio]') && element.closest('fieldset').textContent.includes('ZeRO')")
    tab.keyboard.press("ArrowRight")
    tab.wait_for_selector("h2:has-text('Solved')")
    until(tab, "location.hash.includes('layout.zero=1')")
    tab.wait_for_selector("h2:has-text('What really happened')")
    assert "figure 1" in tab.locator("cite").inner_text()
    tab_to(tab, "element.matches('a.primary')")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("h1:has-text('Keep it or compute')")
    tab_to(tab, "element.matches('button') && element.textContent.includes('Show me')")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".result h2")
    assert tab.locator("h2:has-text('Solved')").count() == 0
    tab_to(
        tab, "element.matches('input[type=radio]') && element.closest('fieldset').textContent.includes('Recomputation')"
    )
    tab.keyboard.press("ArrowRight")
    tab.wait_for_selector("h2:has-text('Solved')")
    tab.keyboard.press("Control+z")
    tab.wait_for_selector("h2:has-text('To win')")


def test_hints_come_one_at_a_time_then_the_solution(watched: Watched) -> None:
    tab = opened(watched, "heavy-head")
    hints = TASKS["heavy-head"]["hints"]
    for number in range(len(hints)):
        assert tab.locator("ol li").count() == number
        tab.get_by_role("button", name="hint").click()
    assert tab.locator("ol li").count() == len(hints)
    tab.get_by_role("button", name="Set the solution").click()
    tab.wait_for_selector("h2:has-text('Solved')")
    assert tab.get_by_label("segments per stage", exact=True).input_value() == "[10,9,9,6]"
    tab.get_by_role("button", name="Back to the start").click()
    tab.wait_for_selector("h2:has-text('To win')")


def test_progress_stays_and_can_be_carried_over(watched: Watched) -> None:
    tab = opened(watched, "eight-copies", {"layout.zero": "3"})
    tab.wait_for_selector("h2:has-text('Solved')")
    tab.reload()
    tab.wait_for_selector("h2:has-text('Solved')")
    watched.open("#/tasks")
    tab.wait_for_selector("[data-task=eight-copies].won")
    assert tab.locator(".won[data-task]").count() == 1
    assert "Continue: Keep it" in tab.locator("a.primary").inner_text()
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save progress").click()
    saved = Path(download.value.path()).read_text()
    assert json.loads(saved) == {"tasks": {"eight-copies": {"guess": None, "won": True}}}
    tab.get_by_role("button", name="Start over").click()
    tab.get_by_role("button", name="Forget everything?").click()
    tab.wait_for_selector("b:has-text('0')")
    field = tab.locator("input[type=file]")
    field.set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": b"[]"})
    tab.get_by_text("this is no progress of tasks").wait_for()
    field.set_input_files({"name": "y.json", "mimeType": "application/json", "buffer": saved.encode()})
    tab.wait_for_selector("[data-task=eight-copies].won")
    assert "".join(tab.evaluate("Object.keys(localStorage)")) == "fourfold-tasks"


def test_a_class_is_a_table_of_files_and_links_in_the_address(watched: Watched) -> None:
    tab = watched.tab
    tab.set_viewport_size({"width": 390, "height": 844})
    watched.open("#/tasks?tasks.class=")
    tab.get_by_role("heading", name="A class").wait_for()
    reached = {"eight-copies": {"won": True}, "heavy-head": {"won": True, "shown": True}, "too-deep": {"hints": 1}}
    file = {"mimeType": "application/json", "buffer": json.dumps({"tasks": reached}).encode()}
    tab.locator("input[type=file]").set_input_files(
        [{"name": "Ada.json", **file}, {"name": "x.json", **file, "buffer": b"[]"}]
    )
    tab.get_by_text("x.json: this is no progress of tasks").wait_for()
    tab.get_by_label("Links").fill(
        f"{watched.address}#/tasks?tasks.class=Bo%3Deight-copies%3Awon%3BSubrahmanyan%20Chandrasekhar%3Dtoo-deep%3Awon"
    )
    tab.keyboard.press("Enter")
    tab.get_by_role("columnheader", name="Bo").wait_for()

    def row(name: str) -> list[str]:
        return [text.split("\n")[-1] for text in tab.locator(f"tr:has-text('{name}') td").all_inner_texts()]

    tab.reload()
    tab.get_by_role("columnheader", name="Bo").wait_for()
    assert row("Eight copies of one model") == ["solved", "solved", "", "2"]
    assert row("The heavy head") == ["solved with the solution shown", "", "", "1"]
    assert row("Too deep") == ["begun", "", "solved", "1"]
    assert row(f"of {len(TASKS)} solved")[:2] == ["2", "1"]
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert violations(tab) == []
    tab.get_by_role("button", name="Take Ada away").click()
    until(tab, "!location.hash.includes('Ada')")


def test_the_page_works_where_nothing_can_be_kept(watched: Watched) -> None:
    watched.tab.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('none'); } })")
    tab = opened(watched, "eight-copies", {"layout.zero": "1"})
    tab.wait_for_selector("h2:has-text('Solved')")
    tab.get_by_role("link", name="Tasks", exact=True).last.click()
    tab.wait_for_selector("[data-task=eight-copies].won")


def test_a_locked_key_in_the_address_is_refused(watched: Watched) -> None:
    watched.open(place("eight-copies", {"layout.zero": "1", "layout.tp": "8"}))
    tab = watched.tab
    tab.get_by_role("button", name="Show me").click()
    tab.get_by_text("layout.tp = 8: in this task it stays left out").wait_for()
    assert tab.locator("h2:has-text('Solved')").count() == 0
    tab.get_by_role("button", name="Back to the start").click()
    tab.wait_for_selector(".result h2:has-text('too much')")


def test_only_open_keys_have_controls(watched: Watched) -> None:
    tab = opened(watched, "a-torus")
    labels = tab.locator(".setup label").all_inner_texts()
    assert [text.strip() for text in labels] == ["tensor, tp", "pipeline, pp"]
    tab.get_by_text("Kept by the task").click()
    assert "tpu-v5e-256" in tab.locator("dl").first.inner_text()


def test_a_term_is_explained_on_hover_and_on_focus(watched: Watched) -> None:
    tab = opened(watched, "more-and-smaller")
    term = tab.get_by_role("button", name="pipeline bubble").first
    term.hover()
    tip = tab.locator("[role=tooltip]")
    tip.wait_for()
    text = tip.inner_text()
    assert "(P - 1) / (P - 1 + M)" in text
    assert "Huang et al. 2019" in text
    tab.keyboard.press("Escape")
    tip.wait_for(state="detached")
    term.focus()
    tip.wait_for()
    assert tab.evaluate("document.activeElement.getAttribute('aria-describedby')") == tip.get_attribute("id")
    tab.keyboard.press("Tab")
    tab.mouse.move(5, 5)
    until(tab, "!document.querySelector('[role=tooltip]')?.textContent.includes('Huang')")


def test_a_term_below_the_fold_is_explained_to_the_keyboard(watched: Watched) -> None:
    """Focus scrolls the term into sight; its explanation stays."""
    watched.tab.set_viewport_size({"width": 900, "height": 320})
    tab = opened(watched, "two-thousand-h800")
    tab.get_by_role("button", name="schedule", exact=True).focus()
    tip = tab.locator("[role=tooltip]")
    tip.wait_for()
    tab.wait_for_timeout(400)
    assert "order in which ranks" in tip.inner_text()
    box = tip.bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 320


def test_a_control_explains_its_term(watched: Watched) -> None:
    watched.open("#/strategy")
    watched.tab.wait_for_selector("[aria-busy=false] h1")
    watched.tab.get_by_role("button", name="What is tensor, tp?").hover()
    tip = watched.tab.locator("[role=tooltip]")
    tip.wait_for()
    assert "Shoeybi et al. 2019" in tip.inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_bars_access_to_a_task(watched: Watched, theme: str) -> None:
    """axe-core on a task that is lost, with hints and kept keys open and a term explained; on one that is won."""
    watched.tab.emulate_media(color_scheme=theme, reduced_motion="reduce")
    tab = opened(watched, "two-halves-of-a-backward")
    tab.get_by_role("button", name="A hint").click()
    tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    tab.get_by_role("button", name="zero bubble").focus()
    tab.locator("[role=tooltip]").wait_for()
    assert violations(tab) == []
    tab = opened(watched, "eight-copies", {"layout.zero": "1"})
    tab.wait_for_selector("h2:has-text('Solved')")
    assert violations(tab) == []
    watched.open("#/tasks")
    tab.wait_for_selector(".won[data-task]")
    assert violations(tab) == []


def test_a_phone_has_no_sideways_scroll(watched: Watched) -> None:
    watched.tab.set_viewport_size({"width": 390, "height": 844})
    for name in ("several-stages-each", "every-three-hours"):
        opened(watched, name)
        assert watched.tab.evaluate("document.documentElement.scrollWidth") == 390
    watched.open("#/tasks")
    watched.tab.wait_for_selector("[data-task]")
    assert watched.tab.evaluate("document.documentElement.scrollWidth") == 390


def test_a_guess_comes_before_the_picture_and_stays_beside_the_truth(watched: Watched) -> None:
    watched.open(place("near-experts"))
    tab = watched.tab
    tab.wait_for_selector("h2:has-text('First, a guess')")
    assert tab.locator(".result [data-chart]").count() == 0, "nothing is shown that is to be guessed"
    tab.get_by_role("slider", name="Which share").press("Home")
    assert tab.locator("output").first.inner_text() == "2.0 %"
    tab.get_by_role("button", name="That is my guess").click()
    task = task_named("near-experts")
    truth = judged(task, read_setup(body_of(task.start)))["guess"]
    tab.wait_for_selector(f"[data-verdict] b:has-text('{100 * truth:.0f}')")
    assert f"you guessed 2.0 %: {truth / 0.02:.0f} times too little" in tab.locator("[data-verdict]").inner_text()
    tab.reload()
    tab.wait_for_selector("[data-verdict] span:has-text('you guessed 2.0 %')")


def test_the_picture_stands_before_and_after_and_the_explanation_lights_a_part(watched: Watched) -> None:
    tab = opened(watched, "near-experts")
    figure = tab.locator("[data-figure=time]")
    figure.wait_for()
    assert figure.locator("[data-chart]").count() == 1
    watched.open(place("near-experts", {"layout.ep": "8"}))
    tab.wait_for_selector("h2:has-text('Solved')")
    assert figure.locator("[data-chart]").count() == 2
    why = tab.locator(".why")
    assert re.search(r"links: \d+ ms of sending in place of \d\.\d+ s\.", why.inner_text())
    assert figure.locator("rect.dim").count() == 0
    why.get_by_role("button", name="Show it in the picture").focus()
    until(tab, "document.querySelectorAll('[data-figure] rect.dim').length > 2")
    lit = tab.evaluate(
        "[...document.querySelectorAll('[data-figure] rect.part:not(.dim)')].map(each => each.style.fill)"
    )
    assert set(lit) == {"var(--axis-ep)"}


def test_a_task_that_is_opened_as_it_is_solved_is_won(watched: Watched) -> None:
    tab = opened(watched, "divide-the-norms", {"layout.recompute": "selective", "layout.sequence_parallel": "true"})
    tab.wait_for_selector("h2:has-text('Solved')")
    tab = opened(watched, "gather-less-often", {"layout.microbatch_sequences": "4"})
    tab.wait_for_selector("h2:has-text('Solved')")


def test_a_pipeline_is_drawn_before_and_after(watched: Watched) -> None:
    tab = opened(watched, "one-at-a-time", {"layout.schedule": "1f1b"})
    tab.wait_for_selector("h2:has-text('Solved')")
    figure = tab.locator("[data-figure=pipeline]")
    figure.locator("canvas").nth(1).wait_for()
    assert figure.locator("canvas").count() == 2
    assert "which 7" in figure.inner_text() or "which 8" in figure.inner_text()
    assert violations(tab) == []


def test_a_task_of_ones_own_is_written_tried_and_shared_by_its_link(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/tasks")
    tab.get_by_role("link", name="Write a task of your own").click()
    text = tab.get_by_label("Text of the task")
    until(tab, "document.querySelector('textarea')?.value.includes('eight-copies')")
    text.fill(text.input_value().replace("Eight copies of one model", "Mine").replace("level = 1", "level = 9"))
    tab.get_by_role("button", name="Try it").click()
    tab.get_by_text("level = 9").first.wait_for()
    text.fill(text.input_value().replace("level = 9", "level = 2"))
    tab.get_by_role("button", name="Try it").click()
    tab.wait_for_selector("h1:has-text('Mine')")
    address = tab.url
    assert "tasks.own=" in address
    tab.get_by_role("button", name="Show me").click()
    tab.get_by_label("1", exact=True).press("Space")
    tab.wait_for_selector("h2:has-text('Solved')")
    assert violations(tab) == []
    tab.goto("about:blank")
    tab.goto(address)
    tab.wait_for_selector("h1:has-text('Mine')")
