"""Pages of one file, opened from the disk with the network off: a run, a simulation, a plan, a very long run."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fourfold.explore.schema import saved_document
from fourfold.launch.run_folder import RunFolder
from fourfold.report.page_file import write_page
from fourfold.report.step_metrics import StepMetrics
from tests.explore.test_pages import violations
from tests.explore.test_run import NAME, check_exports, figure, finished_run
from tests.explore.test_strategy import until
from tests.support.explore_server import Watched, address_now, needs_page, watching

RANKS, INSTRUCTIONS, STEPS = 64, 3000, 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    needs_page()
    return finished_run(tmp_path_factory.mktemp("runs"))


def command(*arguments: object) -> str:
    words = [sys.executable, "-m", "fourfold", *map(str, arguments)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def offline(browser: Any) -> Iterator[Callable[[Path], Watched]]:
    """Opens a file in a tab without a network."""
    with ExitStack() as tabs:

        def open_file(path: Path) -> Watched:
            found = tabs.enter_context(watching(browser, path.resolve().as_uri(), offline=True))
            found.open()
            return found

        yield open_file


def test_a_run_opens_from_the_disk_with_all_that_the_server_shows(offline, folder: RunFolder, tmp_path: Path) -> None:
    command("report", folder.path, "--out", tmp_path / "run.html")
    found = offline(tmp_path / "run.html")
    tab = found.tab
    tab.wait_for_selector("h2:has-text('One step over time')")
    assert tab.title() == NAME
    assert NAME in tab.locator("h1").inner_text()
    assert figure(tab, "loss") == "3.1000"
    assert tab.locator("figure").count() == 17
    assert tab.locator("main img, main script, nav").count() == 0
    for theme in ("light", "dark"):
        tab.emulate_media(color_scheme=theme)
        assert violations(tab) == []
    check_exports(tab, folder.metrics)
    tab.locator("text=last tenth").click()
    until(tab, "location.hash.includes('run.steps=53-59')")
    found.open("#" + address_now(tab).partition("#")[2])
    tab.wait_for_selector("svg[aria-label='Loss from step 53 to 59']")
    tab.get_by_role("button", name="Light colours").or_(tab.get_by_role("button", name="Dark colours")).click()


def test_what_is_not_in_the_file_is_not_executed(offline, folder: RunFolder, tmp_path: Path) -> None:
    """A script that somebody adds to the file has another hash than its policy names."""
    command("report", folder.path, "--out", tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    (tmp_path / "other.html").write_text(text.replace("</body>", "<script>document.title = 'changed'</script></body>"))
    found = offline(tmp_path / "other.html")
    assert found.tab.title() == NAME
    assert any("Content Security Policy" in fault for fault in found.faults)
    found.faults.clear()


@pytest.mark.parametrize("kind", ["simulate", "plan"])
def test_a_plan_and_a_simulation_open_from_the_disk(offline, tmp_path: Path, kind: str) -> None:
    model = (
        "--model",
        "smollm2-135m",
        "--cluster",
        "dgx-h100:2",
        "--sequence-length",
        "2048",
        "--batch-sequences",
        "16",
    )
    arguments = ("preset:llama3.1-8b-128",) if kind == "simulate" else model
    path = tmp_path / f"{kind}.json"
    path.write_text(command(kind, *arguments, "--json"))
    assert command("report", path, "--out", tmp_path / "page.html") == f"page {tmp_path / 'page.html'}\n"
    tab = offline(tmp_path / "page.html").tab
    document = json.loads(path.read_text())
    if kind == "simulate":
        assert figure(tab, "MFU") == f"{100 * document['mfu']:.1f} %"
        assert {"Memory", "Step time", "Network"} <= set(tab.locator("figure h2").all_inner_texts())
    else:
        assert tab.locator("h1").inner_text() == document["best"][0]["words"]
        tab.locator("ol button").nth(1).click()
        assert tab.locator("ol button[aria-pressed=true]").inner_text().startswith(document["best"][1]["words"])
    assert tab.locator("main input, main select").count() == 0
    for theme in ("light", "dark"):
        tab.emulate_media(color_scheme=theme)
        assert violations(tab) == []


def long_run(folder: RunFolder) -> dict[str, Any]:
    """Documents of 64 ranks with thousands of instructions, and of 100,000 steps with one peak."""
    from fourfold.api.run_feed import RunFeed, run_documents
    from fourfold.results.comparison import compare

    feed = RunFeed(folder.path)
    feed.refresh()
    documents = run_documents(feed, compare(folder))
    metrics = StepMetrics()
    losses = [3 + 8 * math.exp(-step / 5000) + 0.1 * math.sin(step) for step in range(STEPS)]
    losses[54_321] = 77.0
    metrics.add([{"step": step, "loss": loss, "mfu": 0.4, "lr": 1e-4} for step, loss in enumerate(losses)])
    documents["run"] |= {
        "step": STEPS,
        "curves": {key: asdict(metrics.curve(key, 0, STEPS)) for key in metrics.columns},
    }
    documents["metrics"] = metrics.table()
    names = [("F b0 m0", "B b0 m0", "wait R> b1 m0 r1", "S> b0 m0 r1")[index % 4] for index in range(INSTRUCTIONS)]
    timeline = {
        "step": 9,
        "starts": [0.001 * index for index in range(INSTRUCTIONS)],
        "ends": [0.001 * index + 0.0009 for index in range(INSTRUCTIONS)],
        "streams": [[index, 0.001 * index, 0.001 * index + 0.0008, "pp"] for index in range(0, INSTRUCTIONS, 4)],
    }
    rank = {"rank": 0, "instructions": names, "measured": timeline, "predicted": timeline | {"step": None}}
    documents["comparison"]["timelines"] = [rank | {"pp_rank": number} for number in range(RANKS)]
    return documents


def test_a_long_run_of_many_ranks_stays_smooth(offline, folder: RunFolder, tmp_path: Path) -> None:
    write_page(tmp_path / "long.html", "long", long_run(folder))
    tab = offline(tmp_path / "long.html").tab
    tab.wait_for_selector("h2:has-text('One step over time')")
    assert "77" in tab.locator("figure:has-text('Loss')").first.inner_text(), "the one peak is kept"
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Steps as CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) < STEPS / 10
    assert any(line.startswith("54321,77") for line in lines), "the one peak is in it"
    assert any(f"of {STEPS:,} steps" in text for text in tab.get_by_role("status").all_inner_texts())
    tab.get_by_role("application").focus()
    frames = tab.evaluate(
        """async () => {
            const target = document.activeElement, times = [];
            const next = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
            await next();
            for (const key of ["+", "+", "ArrowRight", "+", "+", "+", "-", "ArrowDown", "+", "+"]) {
                const begun = performance.now();
                target.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey: key === "ArrowRight", bubbles: true }));
                await next();
                await next();
                times.push(performance.now() - begun);
            }
            return times.sort((a, b) => a - b);
        }"""
    )
    assert frames[len(frames) // 2] < 400, frames


SMALL = (
    *("--model", "smollm2-135m", "--cluster", "dgx-h100:2"),
    *(
        "--sequence-length",
        "2048",
        "--batch-sequences",
        "16",
        "data.corpus=c",
        "data.tokenizer=t",
        "optimizer.lr=0.001",
        "optimizer.warmup_steps=9",
    ),
)


@pytest.mark.parametrize("kind", ["simulate", "plan"])
def test_a_document_that_tells_of_files_beside_it_is_one_that_is_read(tmp_path: Path, kind: str) -> None:
    """Every option that adds to `--json` adds what the document's type has."""
    files = {
        "simulate": ("preset:llama3.1-8b-128", "--trace", tmp_path / "trace.json.gz"),
        "plan": (*SMALL, "--out", tmp_path / "run.toml", "--as", "torchtitan"),
    }[kind]
    path = tmp_path / "saved.json"
    path.write_text(command(kind, *files, "--json"))
    document = saved_document(path)[kind]
    assert document.keys() >= ({"trace"} if kind == "simulate" else {"run_file", "export"})
