"""Every page shows the set-up of the Strategy page, until a person plays; a server that starts again goes on; tabs agree."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest

from fourfold.api.simulation import simulate
from fourfold.config import load_run
from tests.explore.test_strategy import EIGHT, place, saved, settled
from tests.support.explore_server import Watched, in_address, until

DEEPSEEK, LLAMA = "preset:deepseek-v3-2k", "preset:llama3-405b-16k"


def figure(tab: Any, name: str) -> str:
    return tab.locator(f"[data-figure='{name}']").inner_text()


@pytest.mark.parametrize(
    ("run", "title", "words"),
    [
        (DEEPSEEK, "DualPipeV", r"P 16, M \d+, VPP 2, DualPipeV, in seconds"),
        (LLAMA, "interleaved", r"P 16, M \d+, VPP 8, interleaved, in seconds"),
    ],
)
def test_the_pipeline_is_the_set_up_s(watched: Watched, run: str, title: str, words: str) -> None:
    tab, layout = watched.tab, load_run(Path(run)).layout
    watched.open(f"#/pipeline?{urlencode({'run': run})}")
    tab.wait_for_selector(f"h1:has-text('{title}')")
    sentence = tab.locator(".rail").inner_text()
    assert re.search(f"As on the Strategy page: {words}", sentence)
    microbatches = simulate(run).summary.num_microbatches
    assert f"M {microbatches}," in sentence
    tab.wait_for_selector(f"p:has-text('{layout.pp} ranks, {microbatches} microbatches')")
    assert figure(tab, "step").endswith("s")


def test_who_plays_begins_with_the_set_up_and_comes_back_to_it(watched: Watched) -> None:
    tab = watched.tab
    watched.open(f"#/pipeline?{urlencode({'run': DEEPSEEK})}")
    tab.wait_for_selector("h1:has-text('DualPipeV')")
    tab.select_option("select", "zb_h1")
    tab.wait_for_selector("h1:has-text('ZB-H1')")
    in_address(tab, "pipeline.ranks=16")
    in_address(tab, "run=preset:deepseek-v3-2k")
    assert "Yours: what you change here leaves the set-up as it is" in tab.locator(".rail").inner_text()
    tab.get_by_text("the set-up's", exact=True).click()
    tab.wait_for_selector("h1:has-text('DualPipeV')")
    assert "pipeline." not in tab.evaluate("location.hash")


def test_a_set_up_without_a_pipeline_says_so_and_the_formula_has_numbers(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/pipeline")
    tab.wait_for_selector("[data-figure=bubble]:text-is('27.3 %')")
    assert "The set-up has no pipeline (pp 1)" in tab.locator(".rail").inner_text()
    assert "(P − 1)/(P − 1 + M) = 3/11" in tab.locator(".drawn dl").inner_text()
    tab.select_option("select", "zb_h2")
    tab.wait_for_selector("h1:has-text('ZB-H2')")
    tab.wait_for_selector("[data-figure='inner idle']:text-is('0.0 %')")
    assert figure(tab, "bubble") != "0.0 %"


def test_the_cursor_keeps_its_share_of_the_step_when_the_unit_changes(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/pipeline")
    tab.wait_for_selector("[data-figure=bubble]:text-is('27.3 %')")
    slider = tab.get_by_label("Time of the cursor")
    slider.evaluate("e => { e.value = e.max / 4; e.dispatchEvent(new Event('input', {bubbles: true})) }")
    share = "e => Number(e.value) / Number(e.max)"
    before = slider.evaluate(share)
    tab.get_by_text("of the model", exact=True).click()
    in_address(tab, "pipeline.times=cluster")
    tab.wait_for_selector("[data-figure=step]:has-text('s')")
    assert slider.evaluate(share) == pytest.approx(before, abs=0.02) == pytest.approx(0.25, abs=0.02)


def test_a_block_is_cut_as_the_set_up_cuts_it(watched: Watched) -> None:
    tab = watched.tab
    watched.open(f"#/parallelism?{urlencode({'run': LLAMA})}")
    tab.wait_for_selector("[data-setup]:has-text('tp 8, as drawn')")
    assert tab.locator("dt:has-text('pp') + dd").inner_text() == "16"
    group = tab.locator("fieldset:has-text('Tensor parallel')")
    assert group.locator("input:checked").get_attribute("value") == "8"
    group.get_by_text("2", exact=True).click()
    tab.wait_for_selector("[data-setup]:has-text('The set-up has tp 8;')")
    in_address(tab, "parallelism.tp=2")
    tab.get_by_role("button", name="draw the set-up's").click()
    tab.wait_for_selector("[data-setup]:has-text('tp 8, as drawn')")


def test_of_an_exchange_of_experts_a_rank_s_own_part_stays(watched: Watched) -> None:
    tab = watched.tab
    own = {"model.preset": "mixtral-8x7b", "parallelism.part": "expert", "parallelism.exchange": "1"}
    watched.open(f"#/parallelism?{urlencode(EIGHT | own)}")
    tab.wait_for_selector("p.said:has-text('(ep − 1)/ep = 3/4')")
    found = json.loads(saved(tab, "Expert parallelism: tokens go to their experts", "JSON"))
    sentence = tab.locator("p.said:has-text('(ep − 1)/ep')").inner_text()
    leaves = found["exchange_bytes"] * 3 / 4
    assert any(f"{leaves / size:.3g}"[:3] in sentence for size in (1e3, 1e6, 1e9))


def test_what_a_refusal_says_works_is_one_click(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place(EIGHT))
    settled(tab)
    tab.evaluate("hash => { location.hash = hash }", place({**EIGHT, "layout.tp": "3"}))
    tab.wait_for_selector("h1:has-text('This layout cannot run')")
    assert (
        "Grey: the set-up before, which can run: 8 devices of dgx-h100:8, tp 1" in tab.locator(".before").inner_text()
    )
    tab.locator("p.warn button").click()
    tab.wait_for_selector("h1:not(:has-text('cannot run'))")
    settled(tab)
    assert "layout.tp=3" not in tab.evaluate("location.hash")


def test_a_picture_says_what_it_is_and_where_it_is_from(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place(EIGHT))
    settled(tab)
    text = saved(tab, "Step time", "SVG")
    shown = " ".join(
        "".join(each.itertext()) for each in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
    )
    assert shown.startswith("Step time")
    for words in ("compute", "bubble", "fourfold explore,", "model.preset=llama3-8b"):
        assert words in shown.replace("- ", "-"), words


@pytest.mark.parametrize("page", ["strategy", "pipeline", "parallelism", "collectives", "device", "cluster"])
def test_every_item_of_every_menu_gives_a_file(watched: Watched, page: str) -> None:
    tab = watched.tab
    watched.open(f"#/{page}?{urlencode(EIGHT)}")
    tab.wait_for_selector("figure figcaption")
    tab.wait_for_load_state("networkidle")
    names = [
        each.get_attribute("aria-label") or each.inner_text()
        for each in tab.locator("figure .tools button[popovertarget]").all()
    ]
    assert names
    for index in range(len(names)):
        opener = tab.locator("figure .tools button[popovertarget]").nth(index)
        opener.click()
        kinds = tab.locator(".menu:popover-open button").all_inner_texts()
        assert {"CSV", "JSON"} <= {*kinds}
        for kind in kinds:
            if not tab.locator(".menu:popover-open").count():
                opener.click()
            print(f"saving {names[index]} as {kind}")  # a test that fails says which was not saved
            with tab.expect_download() as download:
                tab.locator(".menu:popover-open").get_by_role("button", name=kind, exact=True).click()
            assert Path(download.value.path()).stat().st_size > 20, (index, kind)
        tab.keyboard.press("Escape")


def test_two_tabs_keep_each_other_s_progress(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/tasks")
    tab.wait_for_selector("[data-task]")
    first, second = [each.get_attribute("data-task") for each in tab.locator("[data-task]").all()[:2]]
    other = tab.context.new_page()
    other.goto(watched.address + "#/tasks")
    other.wait_for_selector("[data-task]")
    for each, name in ((other, first), (tab, second)):
        each.evaluate(
            "name => { const key = 'fourfold-tasks', now = JSON.parse(localStorage.getItem(key) ?? '{\"tasks\":{}}');"
            " now.tasks[name] = {won: true}; localStorage.setItem(key, JSON.stringify(now)) }",
            name,
        )
    for each, name in ((tab, first), (other, second)):
        until(
            each,
            f"document.querySelector('[data-task={json.dumps(name)}]').textContent.toLowerCase().includes('solved')",
        )
    other.close()


def test_a_server_that_starts_again_goes_on(browser: Any, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start() -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "fourfold", "explore", "--no-browser", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path)
        assert process.stdout is not None
        return process, re.findall(r"http://\S+", process.stdout.readline())[0]

    server, printed = start()
    context = browser.new_context()
    tab = context.new_page()
    try:
        tab.goto(f"{printed}{place(EIGHT)}")
        tab.wait_for_selector("[aria-busy=false] h1")
        before = figure(tab, "step")
        server.terminate()
        server.wait()
        tab.evaluate("hash => { location.hash = hash }", place({**EIGHT, "batch.global_sequences": "128"}))
        tab.wait_for_selector("p.warn:has-text('It is asked again and again')")
        assert "cannot run" not in tab.locator("body").inner_text()
        server, printed = start()
        other = context.new_page()
        other.goto(printed)  # as the person does, or the command
        other.close()
        until(tab, f"document.querySelector('[data-figure=step]').innerText !== {json.dumps(before)}")
        assert tab.locator("p.warn").count() == 0
    finally:
        context.close()
        server.terminate()
        server.wait()


def test_replicas_share_the_set_up_s_data_parallelism(watched: Watched) -> None:
    watched.open(f"#/parallelism?{urlencode({'run': LLAMA, 'parallelism.part': 'zero'})}")
    watched.tab.wait_for_selector("h2:text-is('ZeRO-1')")
    watched.tab.wait_for_load_state("networkidle")
    assert "HSDP: the layout" not in watched.tab.locator("body").inner_text()


def test_what_moves_or_sends_more_than_one_thinks_has_a_sentence(watched: Watched) -> None:
    tab = watched.tab
    watched.open(f"#/parallelism?{urlencode({**EIGHT, 'parallelism.part': 'zero'})}")
    tab.wait_for_selector("[data-again]:has-text('it reduces them after each of the 8 microbatches, ZeRO-1 once')")
    watched.open(f"#/device?{urlencode(EIGHT)}")
    tab.wait_for_selector("[data-more]:has-text('FlashAttention-2 moves more here')")


def test_a_print_has_the_figures_and_not_the_controls(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place(EIGHT))
    settled(tab)
    tab.emulate_media(media="print")
    assert not tab.locator(".rail").is_visible()
    assert not tab.locator("header").first.is_visible()
    assert tab.locator("h1").is_visible()
    assert tab.locator("figure").first.is_visible()


def test_a_short_link_has_what_a_step_needs(watched: Watched) -> None:
    watched.open("#/strategy?model.preset=llama3.2-1b")
    settled(watched.tab)
    assert "fits" in watched.tab.locator("h1").inner_text().lower()
    assert watched.tab.locator("p.warn").count() == 0
