"""Page 5: a run, live or finished, in a real browser; hostile folders; and the same page as one file with the network off."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import TypeAdapter

pytest.importorskip("torch")

from fourfold.explore.entrance import newest_run
from fourfold.explore.schema import SCHEMAS
from fourfold.launch.run_folder import RunFolder
from fourfold.results.comparison import compare
from tests.explore.test_pages import violations
from tests.explore.test_strategy import saved, until
from tests.report.test_comparison import CLUSTER, as_predicted
from tests.support.explore_server import Watched, address_now, client_of, needs_page, running, watching
from tests.support.one_state import check_one_state
from tests.support.waiting import until as happens

NAME = "<img src=x onerror=alert(1)> run"
STEPS = 60


def finished_run(place: Path) -> RunFolder:
    """A run of four ranks, with script in its name and in its events."""
    folder = as_predicted(place / NAME)
    text = folder.run_file.read_text()
    folder.run_file.write_text(text.replace('preset = "this"', f'preset = "{CLUSTER}"'))
    assert CLUSTER in folder.run_file.read_text()
    with folder.metrics.open("w") as file:
        for step in range(STEPS):
            row = {
                "step": step,
                "loss": 9.0 - step / 10,
                "grad_norm": 1.0,
                "lr": 1e-4,
                "tokens": 64 * step,
                "step_seconds": 0.5,
            }
            row |= {
                "tokens_per_second": 2e4,
                "mfu": 0.25,
                "peak_memory_bytes": 2_000_000,
                "expert_load_max_over_mean": 1.5,
            }
            row |= {"validation_loss": 5.5} if step % 20 == 19 else {}
            file.write(json.dumps(row) + "\n")
    events = [
        {"time": 100.0, "event": "launch"},
        {"time": 103.0, "event": "start", "step": 0},
        {
            "time": 120.0,
            "event": "failure",
            "step": 30,
            "message": "<script>alert(2)</script>",
            "stood_still_seconds": 2.0,
        },
        {"time": 121.0, "event": "restart", "step": 20},
        {"time": 125.0, "event": "resume", "step": 20},
        {"time": 140.0, "event": "finish", "step": STEPS},
    ]
    folder.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def run_address(folder: RunFolder) -> Iterator[str]:
    needs_page()
    with running(str(folder.path)) as found:
        assert found.endswith("#/run")
        yield found.partition("#")[0]


@pytest.fixture
def opened(browser: Any, run_address: str) -> Iterator[Watched]:
    with watching(browser, run_address) as found:
        found.open("#/run")
        found.tab.wait_for_selector("h2:has-text('One step over time')")
        yield found


def figure(tab: Any, name: str) -> str:
    return tab.locator(f'[data-figure="{name}"]').inner_text()


def seconds_of(text: str) -> float:
    value, unit = text.split(" ")
    return float(value) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]


def test_a_run_shows_one_state(browser: Any, run_address: str) -> None:
    """A part of its steps is chosen: all curves are of one range until those of the next are there."""

    def choose(tab: Any) -> None:
        tab.locator("label:has-text('second half')").click()

    with watching(browser, run_address) as watched:
        check_one_state(watched, "#/run", choose, "document.body.innerText.includes('One step over time')")


def test_the_documents_have_their_types(run_address: str) -> None:
    client = client_of(run_address)
    for name in ("run", "metrics", "comparison"):
        TypeAdapter(SCHEMAS[name]).validate_json(client.post(f"/api/{name}", json={}, timeout=60).content, strict=True)


def test_everything_that_a_run_left_is_shown_and_none_of_it_is_executed(opened: Watched, folder: RunFolder) -> None:
    tab = opened.tab
    assert NAME in tab.locator("h1").inner_text()
    found = compare(folder)
    assert figure(tab, "loss") == "3.1000"
    assert figure(tab, "validation loss") == "5.5000"
    assert figure(tab, "MFU") == "25.0 %"
    assert figure(tab, "tokens/s") == "20.0 k"
    assert figure(tab, "steps") == f"step {STEPS} of 10"
    assert seconds_of(figure(tab, "step")) == pytest.approx(found.measured_seconds, rel=5e-3)
    titles = tab.locator("figure h2").all_inner_texts()
    assert titles == [
        "Loss", "Gradient norm", "Learning rate", "Throughput, tokens/s", "MFU", "Step", "Peak memory", "Expert load, max/mean",
        "Goodput by cause", "Where every rank stands", "Events", "History", "One step over time", "Kinds of instructions",
        "Sent in a step by all ranks", "Memory over the step", "Step of every rank",
    ]  # fmt: skip
    assert "failed at step 30: <script>alert(2)</script>" in tab.locator("figure:has-text('Events')").first.inner_text()
    assert tab.locator("main img, main script").count() == 0
    assert "equal on every rank" in tab.locator("figure:has-text('Sent in a step')").first.inner_text()


def test_nothing_bars_access(opened: Watched) -> None:
    for theme in ("light", "dark"):
        opened.tab.emulate_media(color_scheme=theme)
        assert violations(opened.tab) == []
    opened.tab.set_viewport_size({"width": 390, "height": 844})
    assert violations(opened.tab) == []
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_address_holds_what_is_shown(opened: Watched) -> None:
    tab = opened.tab
    tab.locator("text=last tenth").click()
    until(tab, "location.hash.includes('run.steps=53-59')")
    tab.get_by_label("Pipeline rank", exact=True).select_option("1")
    tab.locator("figure:has-text('One step over time') label:has-text('predicted')").click()
    address = address_now(tab)
    assert "run.lanes=predicted" in address
    assert "run.stage=1" in address
    opened.open(address.removeprefix(opened.address))
    tab.wait_for_selector("h2:has-text('Memory over the step')")
    assert tab.get_by_label("Pipeline rank", exact=True).input_value() == "1"
    assert tab.locator("svg[aria-label='Loss from step 53 to 59']").count() == 1
    tab.locator(".range label").first.click()
    until(tab, "!location.hash.includes('run.steps')")
    tab.keyboard.press("Control+z")
    until(tab, "location.hash.includes('run.steps=53-59')")


def test_the_keyboard_alone_reads_a_step_and_a_lane(opened: Watched) -> None:
    tab = opened.tab
    tab.locator(".cursor input").focus()
    for _ in range(3):
        tab.keyboard.press("ArrowLeft")
    assert "3.4 at step 56" in tab.locator("figure:has-text('Loss')").first.inner_text()
    tab.get_by_role("application").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert "pp 0, measured" in tab.locator(".timeline [role=status]").inner_text()
    tab.keyboard.press("Escape")


def test_dragging_over_a_curve_chooses_steps(opened: Watched) -> None:
    box = opened.tab.locator("svg[aria-label^='Loss']").bounding_box()
    opened.tab.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 60)
    opened.tab.mouse.down()
    opened.tab.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 60, steps=4)
    opened.tab.mouse.up()
    until(opened.tab, "/run.steps=\\d+-\\d+/.test(location.hash)")


def check_exports(tab: Any, metrics: Path) -> None:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Steps as CSV").click()
    table = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    assert len(table) == len(rows)
    for found, row in zip(table, rows, strict=True):
        assert {key: float(value) for key, value in found.items() if value} == pytest.approx(row)
    assert ElementTree.fromstring(saved(tab, "Loss", "SVG")).tag.endswith("svg")
    assert len(json.loads(saved(tab, "Loss", "JSON"))["steps"]) == len(rows)
    assert saved(tab, "One step over time", "PNG")[1:4] == "PNG"
    assert len(saved(tab, "Kinds of instructions", "CSV").splitlines()) > 5


def test_what_is_saved_opens_again(opened: Watched, folder: RunFolder) -> None:
    check_exports(opened.tab, folder.metrics)
    tab = opened.tab
    tab.get_by_role("button", name="Where every rank stands as a table").click()
    tab.get_by_role("button", name="One step over time as a table").click()
    assert tab.get_by_role("region", name="Table: One step over time").locator("tbody tr").count() == 4


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"folder": "/etc"}, 422),
        ({"run": "/etc"}, 422),
        ({"first": -1}, 422),
        ({"first": "0"}, 422),
        ({"first": True}, 422),
        ({"first": 10**30}, 422),
        ({"first": 5, "last": 2}, 200),
        ({"first": 0, "last": 10**15}, 200),
    ],
)
def test_no_request_names_a_folder(run_address: str, body: dict, status: int) -> None:
    client = client_of(run_address)
    answer = client.post("/api/run", json=body)
    assert answer.status_code == status
    for name in ("comparison", "metrics"):
        assert client.post(f"/api/{name}", json=body).status_code == 422
    assert client.post("/api/run", json={}, timeout=60).json()["name"] == NAME


def test_without_a_folder_the_page_says_how_to_open_one(watched: Watched) -> None:
    watched.open("#/run")
    watched.tab.wait_for_selector("text=no run is open")
    answer = client_of(watched.address).post("/api/comparison", json={"folder": "/etc"})
    assert answer.status_code == 422
    assert "refused" in client_of(watched.address).post("/api/comparison", json={}).json()


def test_a_folder_that_turns_hostile_is_refused_and_followed_again_when_it_is_right(
    browser: Any, tmp_path: Path
) -> None:
    folder = finished_run(tmp_path)
    with running(str(folder.path)) as address, watching(browser, address.partition("#")[0]) as found:
        found.open("#/run")
        found.tab.wait_for_selector("h2:has-text('One step over time')")
        rows = folder.metrics.read_text()
        folder.metrics.unlink()
        os.mkfifo(folder.metrics)
        found.tab.wait_for_selector("text=is no file")
        assert figure(found.tab, "loss") == "3.1000", "the last answer stays"
        client = client_of(found.address)
        assert client.post("/api/simulate", json={"run": "preset:llama3-70b"}).status_code == 200
        folder.metrics.unlink()
        folder.metrics.symlink_to("/etc/passwd")
        assert "link out" in client.post("/api/run", json={}, timeout=60).json()["refused"]
        folder.metrics.unlink()
        nasty = '{"step": 60, "loss": NaN, "<b>key</b>": 3}\n' + "[" * 100_000 + "\n" + "x" * 3_000_000 + "\n"
        folder.metrics.write_text(rows + nasty)
        found.tab.wait_for_selector("h2:has-text('<b>key</b>')")
        assert figure(found.tab, "steps").startswith("step 61 ")


RUN = """
[model]
num_layers = 2
hidden_size = 32
num_heads = 4
ffn_size = 56
[data]
corpus = "texts"
tokenizer = "bytes"
[batch]
global_sequences = 12
sequence_length = 16
steps = 100000
[layout]
pp = 2
[checkpoint]
every_steps = 10
[run]
device = "cpu"
"""


def test_a_run_that_trains_is_followed_to_its_end_and_beyond(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("A text about numbers.\n" * 60)
    folder = RunFolder(tmp_path / "run")
    command = [sys.executable, "-m", "fourfold", "train", "run.toml", "--ranks", "2", "--out", "run"]

    def train() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    process = train()
    try:
        happens(folder.metrics.is_file, process)
        with running(str(folder.path)) as address, watching(browser, address.partition("#")[0]) as found:
            found.open("#/run")
            tab = found.tab
            steps = "Number(/[\\d,]+/.exec(document.querySelector('[data-figure=steps]')?.textContent)?.[0].replaceAll(',', ''))"
            until(tab, f"{steps} > 5")
            first = tab.evaluate(steps)
            points = tab.locator("svg[aria-label^='Loss'] path.line").get_attribute("d")
            until(tab, f"{steps} > {first + 5}")
            assert tab.locator("svg[aria-label^='Loss'] path.line").get_attribute("d") != points
            assert "training" in tab.locator(".state").inner_text()
            until(tab, "/#\\d+ \\S/.test(document.querySelector('[aria-label=Ranks] svg').textContent)")
            tab.wait_for_selector("h2:has-text('One step over time')")
            process.terminate()
            process.wait()
            tab.wait_for_selector(".state:has-text('stopped')")
            stopped = len(folder.metrics.read_text().splitlines())
            until(tab, f"{steps} === {stopped}")
            process = train()  # goes on from its checkpoint
            until(tab, f"{steps} > {stopped}")
            rows = [json.loads(line)["step"] for line in folder.metrics.read_text().rpartition("\n")[0].splitlines()]
            assert rows == list(range(len(rows)))
            table = client_of(found.address).post("/api/metrics", json={}).json()["steps"]
            assert table == list(range(len(table))), "no step is lost or told twice"
    finally:
        process.terminate()
        process.wait()


def test_a_run_is_followed_though_its_comparison_does_not_come(browser: Any, tmp_path: Path) -> None:
    needs_page()
    folder = finished_run(tmp_path)
    with running(str(folder.path)) as address, watching(browser, address.partition("#")[0]) as found:
        held: list[Any] = []
        found.tab.route("**/api/comparison", lambda route: held.append(route))  # never answered
        found.open("#/run")
        found.tab.wait_for_selector('[data-figure="steps"]')
        row = json.loads(folder.metrics.read_text().splitlines()[-1])
        with folder.metrics.open("a") as file:
            file.write(json.dumps({**row, "step": row["step"] + 1}) + "\n")
        until(found.tab, f"document.querySelector('[data-figure=steps]').textContent.includes('{row['step'] + 2}')")
        assert len(held) == 1, "it is asked for once while it is under way"


def test_without_a_name_the_newest_run_below_runs_is_shown(tmp_path: Path) -> None:
    needs_page()
    runs = tmp_path / "runs"
    runs.mkdir()
    for age, name in ((100, "old"), (0, "new"), (-100, "no run"), (-200, "a link")):
        folder = as_predicted(runs / name).path if name in ("old", "new") else runs / name
        folder.mkdir(exist_ok=True)
        metrics = folder / "metrics.jsonl"
        if name == "a link":
            as_predicted(tmp_path / "elsewhere")
            (folder / "run.toml").symlink_to(tmp_path / "elsewhere/run.toml")
        metrics.touch()
        os.utime(metrics, (time.time() - age,) * 2)
    assert newest_run(runs) == runs / "new"
    assert newest_run(tmp_path / "nowhere") is None
    with running(folder=tmp_path) as address:
        found = client_of(address).post("/api/run", json={}).json()
        assert found["name"] == "new"
    with running() as address:
        assert "no run is open" in client_of(address).post("/api/run", json={}).text
