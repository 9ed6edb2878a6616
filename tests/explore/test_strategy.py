"""The strategy page in a browser: its numbers are simulate's, its controls change them, its address holds them."""

import csv
import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from fourfold.api.simulation import simulate
from fourfold.config import UserError
from tests.support.explore_server import Watched, address_now, in_address, until
from tests.support.waiting import processor_seconds

SMALL = {
    "model.preset": "llama3.2-1b",
    "cluster": "dgx-h100:8",
    "batch.global_sequences": "64",
    "batch.sequence_length": "2048",
    "precision.compute": "bf16",
}
EIGHT = SMALL | {"model.preset": "llama3-8b"}


def place(keys: dict[str, str]) -> str:
    return f"#/strategy?{urlencode(keys)}"


def predicted(keys: dict[str, str]) -> dict[str, Any]:
    overrides = {key: int(value) if value.isdecimal() else value for key, value in keys.items() if "." in key}
    return json.loads(json.dumps(simulate({}, overrides, cluster=keys["cluster"]).to_json(advice=False)))


def answered(keys: dict[str, str]) -> dict[str, Any]:
    """The prediction, or why there is none."""
    try:
        return predicted(keys)
    except UserError as error:
        return {"refused": str(error)}


def document(tab: Any) -> dict[str, Any]:
    """The document that the page shows, from what its chart gives away."""
    found: dict[str, Any] = {
        "memory": json.loads(saved(tab, "Memory", "JSON")),
        "spent": json.loads(saved(tab, "Step time", "JSON")),
    }
    return found


def saved(tab: Any, chart: str, kind: str) -> str:
    """The content of a file that a chart saves."""
    tab.get_by_role("button", name=f"Save {chart}").click()
    with tab.expect_download() as download:
        tab.locator(".menu:popover-open").get_by_role("button", name=kind, exact=True).click()
    tab.keyboard.press("Escape")
    return Path(download.value.path()).read_bytes().decode("utf-8", "replace")


def settled(tab: Any) -> None:
    """Waits until the page shows what the controls say."""
    tab.wait_for_selector("[aria-busy=false] h1")


def random_layouts(number: int) -> list[dict[str, str]]:
    """Layouts that are answered, and those that are refused."""
    chance = random.Random(4)
    return [
        SMALL
        | {
            "layout.tp": str(chance.choice((1, 2, 4, 8))),
            "layout.pp": str(chance.choice((1, 1, 2, 4))),
            "layout.cp": str(chance.choice((1, 1, 2))),
            "layout.zero": str(chance.randrange(4)),
            "layout.microbatch_sequences": str(chance.choice((1, 2, 3))),
            "layout.recompute": chance.choice(("none", "selective", "full")),
            "layout.schedule": chance.choice(("1f1b", "gpipe", "interleaved_1f1b")),
        }
        for _ in range(number)
    ]


def test_fifty_random_layouts_have_simulates_numbers(watched: Watched) -> None:
    """The page asks the server as it always does; what it was given is what `simulate --json` prints."""
    tab = watched.tab
    watched.open(place(SMALL))
    settled(tab)
    answers: list[tuple[str, Any]] = []
    tab.on(
        "response",
        lambda answer: answer.url.endswith("/api/simulate") and answers.append((answer.request.post_data, answer)),
    )
    refused = 0
    for keys in random_layouts(50):
        answers.clear()
        with tab.expect_response("**/api/simulate"):
            tab.evaluate("hash => { location.hash = hash }", place(keys))
        settled(tab)
        shown = answers[-1][1].json()
        expected = answered(keys)
        assert shown == expected
        if "refused" in expected:
            refused += 1
            assert tab.locator("h1").inner_text() == "This layout cannot run"
            continue
        figure = tab.locator("[data-figure=MFU]").inner_text()
        assert figure == f"{100 * expected['mfu']:.1f} %"
        line = (
            expected["verdict"][0].removeprefix("memory  ").split(", 80 % of runs")[0].replace("DOES NOT", "does not")
        )
        assert tab.locator("h1").inner_text() == line[0].upper() + line[1:]
    assert 0 < refused < 40


def test_the_trial_of_seven_billion_parameters(watched: Watched) -> None:
    """Plain data parallelism does not fit; ZeRO-3, one click, does; undo goes back."""
    tab = watched.tab
    watched.open()
    tab.get_by_role("button", name="7B on 8 devices").click()
    tab.wait_for_selector("h1:has-text('too much')")
    tab.get_by_role("button", name="Switch on ZeRO-3").click()
    tab.wait_for_selector("h1:has-text('ly fits')")
    in_address(tab, "layout.zero=3")
    tab.get_by_role("button", name="Undo").click()
    tab.wait_for_selector("h1:has-text('too much')")
    tab.get_by_role("button", name="Redo").click()
    tab.wait_for_selector("h1:has-text('ly fits')")


def test_what_405_billion_parameters_on_8_devices_would_take(watched: Watched) -> None:
    tab = watched.tab
    watched.open()
    tab.get_by_role("button", name="405B on 8", exact=True).click()
    tab.wait_for_selector("h1:has-text('too much')")
    tab.get_by_role("button", name="What would it take?").click()
    take = tab.get_by_role("button", name=re.compile(r"Take [\d,]+ devices"))
    take.wait_for()
    number = int(take.inner_text().split()[1].replace(",", ""))
    # optimizer states wait on the host: 6 bytes a parameter are 2.4 TB, 29 devices and more of 86 GB
    assert number >= 29
    take.click()
    until(tab, f"location.hash.includes('cluster=dgx-h100:{number}')")


def test_a_slider_by_keyboard_and_by_number(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place(EIGHT))
    settled(tab)
    tab.get_by_label("tensor, tp", exact=True).focus()
    tab.keyboard.press("ArrowRight")
    until(tab, "location.hash.includes('layout.tp=2')")
    tab.get_by_label("sequence length, exact value").fill("3072")
    tab.keyboard.press("Enter")
    until(tab, "location.hash.includes('batch.sequence_length=3072')")
    settled(tab)
    expected = predicted(EIGHT | {"layout.tp": "2", "batch.sequence_length": "3072"})
    assert document(tab)["memory"] == expected["memory"]
    assert document(tab)["spent"] == expected["spent_seconds"]
    tab.keyboard.press("Escape")
    tab.locator("h1").click()
    tab.keyboard.press("Control+z")
    until(tab, "!location.hash.includes('3072')")


def test_the_address_is_the_state(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place({"run": "preset:llama3.1-8b-128"}))
    settled(tab)
    assert "published" in tab.locator("dl").inner_text()
    tab.get_by_text("full", exact=True).click()
    until(tab, "location.hash.includes('layout.recompute=full')")
    settled(tab)
    before, address = tab.locator("dl").inner_text(), address_now(tab)
    tab.goto("about:blank")
    tab.goto(address)
    settled(tab)
    assert tab.locator("dl").inner_text() == before


def test_exports_open_again(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place(EIGHT | {"layout.pp": "2"}))
    settled(tab)
    expected = predicted(EIGHT | {"layout.pp": "2"})
    rows = list(csv.DictReader(io.StringIO(saved(tab, "Memory", "CSV"))))
    assert [int(row["device"]) for row in rows] == [each["device_bytes"] for each in expected["memory"]]
    picture = saved(tab, "Memory", "SVG")
    assert picture.startswith("<svg")
    assert not any(word in picture for word in ("var(", "class="))
    assert saved(tab, "Memory", "PNG")[1:4] == "PNG"
    tab.set_content(picture)
    assert tab.locator("svg rect").count() > 10
    watched.faults.clear()  # of the picture in a page of another policy


def test_a_setup_is_copied_in_three_forms(watched: Watched, tmp_path: Path) -> None:
    tab = watched.tab
    watched.open(place(EIGHT | {"layout.zero": "2"}))
    settled(tab)
    tab.get_by_role("button", name="Copy as").click()
    forms = {}
    for name in ("Command", "Run file", "Python", "Link"):
        tab.locator(".panel").get_by_text(name, exact=True).click()
        tab.get_by_role("button", name="Copy", exact=True).click()
        tab.get_by_role("button", name="Copied").wait_for()
        forms[name] = tab.evaluate("navigator.clipboard.readText()")
    run = tmp_path / "run.toml"
    run.write_text(forms["Run file"])
    expected = predicted(EIGHT | {"layout.zero": "2"})
    assert json.loads(json.dumps(simulate(run).to_json(advice=False))) == expected
    (tmp_path / "fourfold").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fourfold "$@" --json\n')
    (tmp_path / "fourfold").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    pasted = subprocess.run(["bash", "-c", forms["Command"]], text=True, capture_output=True, env=environment)
    assert pasted.returncode == 0, pasted.stderr
    printed = json.loads(pasted.stdout)
    assert printed.pop("advice") is not None
    assert printed == expected
    scope: dict[str, Any] = {}
    exec(forms["Python"], scope)
    assert json.loads(json.dumps(scope["result"].to_json(advice=False))) == expected
    assert forms["Link"] == address_now(tab)


def test_a_config_json_is_dropped_in(watched: Watched, tmp_path: Path) -> None:
    tab = watched.tab
    config = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
              "num_attention_heads": 32, "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}  # fmt: skip
    good, bad, strange = tmp_path / "config.json", tmp_path / "bad.json", tmp_path / "strange.json"
    good.write_text(json.dumps(config))
    bad.write_text("{")
    strange.write_text('{"model_type": "<img src=x onerror=alert(1)>"}')
    watched.open(place(SMALL))
    settled(tab)
    field = tab.locator("input[type=file]")
    field.set_input_files(bad)
    tab.get_by_text("this is no JSON file").wait_for()
    field.set_input_files(strange)
    tab.get_by_text("<img src=x onerror=alert(1)>").wait_for()
    field.set_input_files(good)
    until(tab, "location.hash.includes('model.hidden_size=2048')")
    settled(tab)
    assert "1.60 G parameters" in tab.locator(".verdict p").first.inner_text()


def test_two_layouts_side_by_side(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place(EIGHT))
    settled(tab)
    tab.get_by_role("button", name="Compare").click()
    tab.locator("fieldset:has-text('ZeRO') span", has_text="3").first.click()
    until(tab, "location.hash.includes('b.layout.zero=3')")
    tab.wait_for_selector("h2:has-text('Memory, B')")
    tab.wait_for_selector("dd.second em")
    assert tab.locator("fieldset.differs").count() == 1
    tab.get_by_role("button", name="Keep B").click()
    until(tab, "/[?&]layout.zero=3/.test(location.hash) && !location.hash.includes('b.layout')")


def test_the_search_is_shown_and_a_point_is_taken(watched: Watched) -> None:
    tab = watched.tab
    watched.open(place(SMALL))
    settled(tab)
    tab.get_by_role("button", name="Find the best").click()
    tab.wait_for_selector("circle[role=button]")
    tab.locator("ol button.layout").nth(1).click()
    until(tab, "location.hash.includes('layout.recompute=')")
    tab.locator("circle[role=button]").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("circle[aria-pressed=true]")
    tab.get_by_role("button", name="Ask").click()
    tab.wait_for_selector("ul[aria-label=Answers] li")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_bars_access_to_open_panels(watched: Watched, theme: str) -> None:
    """axe-core on two layouts, with every group open, a table shown, and a layout that cannot run."""
    from tests.explore.test_pages import violations

    tab = watched.tab
    tab.emulate_media(color_scheme=theme)
    watched.open(place(EIGHT | {"strategy.compare": "1", "strategy.edit": "b", "b.layout.tp": "2", "layout.pp": "2"}))
    tab.wait_for_selector("h2:has-text('Memory, B')")
    tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    tab.get_by_role("button", name="Memory, A as a table").click()
    assert violations(tab) == []
    watched.open(place(SMALL | {"layout.tp": "3"}))
    tab.wait_for_selector("h1:has-text('cannot run')")
    assert violations(tab) == []


def test_a_phone_has_no_sideways_scroll(watched: Watched) -> None:
    watched.tab.set_viewport_size({"width": 390, "height": 844})
    watched.open(place(SMALL))
    settled(watched.tab)
    assert watched.tab.evaluate("document.documentElement.scrollWidth") == 390


def test_a_slider_redraws_soon(watched: Watched) -> None:
    """From the input to the figure's change, over a drag: seconds of a processor, of browser and server, whoever else has the
    machine. The docs have the times of a quiet one."""
    tab = watched.tab
    watched.open(place(EIGHT | {"layout.zero": "3"}))
    settled(tab)
    begun = processor_seconds(os.getpid())
    times = tab.evaluate(
        """async () => {
          const slider = [...document.querySelectorAll('input[type=range]')].find(
            each => document.querySelector(`label[for="${each.id}"]`)?.textContent.includes('sequence length'));
          const figure = () => document.querySelector('[data-figure="step"]').textContent;
          const found = [];
          for (let round = 0; round < 20; round += 1) {
            const before = figure(), begun = performance.now();
            const next = String((round * 2) % 5);
            if (slider.value === next) continue;
            slider.value = next;
            slider.dispatchEvent(new Event('input', { bubbles: true }));
            while (figure() === before) await new Promise(requestAnimationFrame);
            found.push(performance.now() - begun);
          }
          return found;
        }"""
    )
    spent = (processor_seconds(os.getpid()) - begun) / len(times)
    print(f"redraw: median {sorted(times)[len(times) // 2]:.0f} ms, {1000 * spent:.0f} ms of a processor")
    assert len(times) >= 19
    assert spent < 0.5


def test_the_first_paint_is_soon(watched: Watched) -> None:
    """The first paint waits for no answer of the server, and for few bytes. The docs have the time on a quiet machine."""
    tab, held = watched.tab, list[Any]()
    tab.route("**/api/*", lambda route: held.append(route))
    tab.goto(watched.address)
    until(tab, "performance.getEntriesByName('first-contentful-paint').length > 0")
    files = "performance.getEntriesByType('resource').filter((each) => !each.name.includes('/api/'))"
    loaded = tab.evaluate(f"{files}.reduce((sum, each) => sum + each.encodedBodySize, 0)")
    print(f"{loaded / 1000:.0f} kB before the first paint")
    assert loaded < 600_000
    for route in held:
        route.continue_()


def test_a_dense_model_of_any_size_is_one_slider(watched: Watched) -> None:
    """The parameters that the engine counts are near those that were asked for, and the field shows them."""
    tab = watched.tab
    watched.open(place(EIGHT))
    settled(tab)
    for wanted in ("1", "30", "400"):
        field = tab.get_by_label("parameters, dense, exact value")
        before = tab.locator("#main .verdict p").first.inner_text()
        field.fill(f"{wanted}B")
        field.press("Enter")
        until(tab, f"document.querySelector('#main .verdict p')?.innerText !== {json.dumps(before)}")
        settled(tab)
        keys = dict(part.split("=") for part in tab.evaluate("location.hash").partition("?")[2].split("&"))
        assert "model.preset" not in keys
        hidden, heads = int(keys["model.hidden_size"]), int(keys["model.num_heads"])
        assert (hidden % 256, hidden // heads, int(keys["model.num_layers"]) % 4) == (0, 128, 0)
        shown = tab.locator("#main .verdict p").first.inner_text()
        found = re.search(r"([\d.]+) ([GMT]) parameters", shown)
        assert found is not None, shown
        assert float(found[1]) * {"M": 1e6, "G": 1e9, "T": 1e12}[found[2]] == pytest.approx(
            1e9 * float(wanted), rel=0.16
        )
        assert field.input_value() == f"{found[1]} {found[2]}"
    before = tab.evaluate("location.hash")
    tab.get_by_label("parameters, dense", exact=True).press("ArrowLeft")
    until(tab, f"location.hash !== {json.dumps(before)}")
