"""The accuracy page: its document is the table that ships, a null model is fitted on it, a run opens as a set-up."""

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from fourfold.api.simulation import simulate
from fourfold.config import UserError
from fourfold.evidence import published_runs
from fourfold.explore.accuracy.document import accuracy_document, accuracy_run, setups
from fourfold.explore.documents import encoded
from fourfold.explore.setup import Malformed, body_of, read_setup
from fourfold.report.units import seconds_text
from tests.explore.test_pages import violations
from tests.support.explore_server import Watched, in_address, until

ROWS = {row["id"]: row for row in accuracy_document()["runs"]}
RUN = "llm_c:0"
PAGE = Path(__file__).parents[2] / "src/fourfold/explore/page"


def test_the_document_is_the_table_that_ships() -> None:
    runs = published_runs()
    assert list(ROWS) == [run.id for run in runs]
    for run in runs:
        row = ROWS[run.id]
        assert (row["step_seconds"], row["predicted_step_seconds"]) == (run.step_seconds, run.predicted_step_seconds)
        assert (row["memory_bytes"], row["predicted_memory_bytes"]) == (run.memory_bytes, run.predicted_memory_bytes)
        assert (row["device"], row["devices"], row["software"]) == (
            run.shape.device,
            run.shape.devices,
            run.shape.software,
        )
    assert {row["kind"] for row in ROWS.values()} == {"dense", "experts"}


def test_the_null_model_is_one_share_of_the_peak_and_no_other_share_is_nearer() -> None:
    mine = [row for row in ROWS.values() if (row["device"], row["gemm_dtype"]) == ("h100-sxm", "bf16")]
    rates = {setups()[row["id"]]["device_flops"] / row["null_step_seconds"] for row in mine}
    assert max(rates) == pytest.approx(min(rates), rel=1e-3)
    measured = np.array([row["step_seconds"] for row in mine])
    null = np.array([row["null_step_seconds"] for row in mine])
    best = fmean(abs(null / measured - 1))
    for factor in (0.9, 0.97, 1.03, 1.1):
        assert fmean(abs(factor * null / measured - 1)) >= best - 1e-4
    ours = fmean(abs(row["predicted_step_seconds"] / row["step_seconds"] - 1) for row in ROWS.values())
    theirs = fmean(abs(row["null_step_seconds"] / row["step_seconds"] - 1) for row in ROWS.values())
    assert ours < 0.85 * theirs


def test_a_run_opens_as_a_set_up_that_the_engine_prices() -> None:
    found = accuracy_run(RUN)
    setup = read_setup(body_of(setups()[RUN]["keys"]))
    step = simulate(setup.run_input, setup.stated, **setup.options)
    assert found["step_seconds"] == step.step_seconds
    assert found["keys"]["cluster"] == setups()[RUN]["keys"]["cluster"]
    assert all(isinstance(value, str) for value in found["keys"].values())
    [closed, *_] = [name for name in ROWS if not ROWS[name]["opens"]]
    assert accuracy_run(closed) == {"id": closed, "keys": {}, "unsaid": [], "step_seconds": None, "memory_bytes": None}


def test_addresses_carry_every_key_that_a_set_up_states() -> None:
    """The page knows sections whole, single keys of others, and options of `simulate`."""
    source = (PAGE / "src/lib/state/setup.ts").read_text()
    lists = re.findall(r"export const (SECTIONS|SINGLE|OPTIONS) = \[(.*?)\]", source, re.S)
    sections, single, options = (set(re.findall(r'"([\w.]+)"', text)) for _, text in lists)
    stated = {key for each in setups().values() for key in each["keys"] or {}}
    assert {key for key in stated if key.partition(".")[0] not in sections} <= single | options


@pytest.mark.parametrize(("body", "kind", "words"), [
    ({}, Malformed, "id is missing"), ({"id": 3}, Malformed, "id = 3"), ({"id": "nobody"}, UserError, "there is no such run"),
])  # fmt: skip
def test_a_run_that_there_is_not_is_told(body: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        encoded("accuracy_run", body, lambda *_: None)


@pytest.mark.page
def test_a_run_is_found_by_filters_and_keys_and_opens_as_a_set_up(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/accuracy")
    tab.wait_for_selector("[data-point]")
    assert tab.locator("[data-point]").count() == len(ROWS)
    tab.get_by_label("Software", exact=True).select_option("llm.c")
    mine = sorted((row["step_seconds"], name) for name, row in ROWS.items() if row["software"] == "llm.c")
    until(tab, f"document.querySelectorAll('[data-point]').length === {len(mine)}")
    in_address(tab, "accuracy.software=llm.c")
    assert tab.locator("tbody tr").count() == len(mine)
    assert tab.locator("[data-point][tabindex='0']").count() == 1, "one stop of Tab, however many runs"
    tab.locator("[data-point][tabindex='0']").focus()
    tab.keyboard.press("End")
    tab.keyboard.press("Enter")
    chosen = tab.locator(f"[data-run='{mine[-1][1]}']")
    chosen.get_by_text("As a set-up of this page").wait_for()
    chosen.get_by_role("link", name="Open in Strategy").click()
    tab.wait_for_selector("[aria-busy=false] h1:has-text('B')")
    seconds = json.loads(encoded("accuracy_run", {"id": mine[-1][1]}, lambda *_: None))["step_seconds"]
    assert seconds_text(seconds) in tab.locator("main").inner_text()


@pytest.mark.page
def test_a_filter_is_a_link_a_phone_scrolls_down_alone_and_nothing_bars_access(watched: Watched) -> None:
    watched.tab.set_viewport_size({"width": 390, "height": 844})
    watched.tab.emulate_media(color_scheme="dark")
    watched.open(f"#/accuracy?accuracy.figure=memory&accuracy.kind=experts&accuracy.run={RUN}")
    tab = watched.tab
    tab.get_by_role("link", name="Open in Strategy").wait_for()
    known = [row for row in ROWS.values() if row["kind"] == "experts" and row["memory_bytes"]]
    assert tab.locator("[data-point]").count() == len(known)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert violations(tab) == []
