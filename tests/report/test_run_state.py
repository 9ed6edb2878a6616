"""Displays show what the run folder says, however it was written."""

import io
import json
import time

import pytest
from rich.console import Console

from fourfold.api.run_feed import RunFeed
from fourfold.config import RunConfig
from fourfold.config.json_lines import Follower
from fourfold.launch.run_folder import RunFolder
from fourfold.report.display import PlainDisplay, render
from fourfold.report.ending import Command, final_lines
from fourfold.report.run_state import RunInfo, RunState, describe_event
from fourfold.report.units import format_bytes, format_count, format_seconds, sparkline
from fourfold.results.record import document

INFO = {"model": "llama, 3 M parameters", "layout": "2 ranks: dp_shard 2, ZeRO-3", "num_steps": 1000}


def state(folder, **changes) -> RunState:
    sizes = {"unigram_entropy_nats": 5.25, "bytes_per_token": 2.0, "predicted_peak_bytes": 2_000_000}
    return RunState(RunInfo(name="tiny", folder=folder, **{**INFO, **sizes, **changes}))


def row(step: int, **values) -> str:
    usual = {"loss": 5.0, "grad_norm": 1.0, "lr": 1e-3, "tokens": 64 * (step + 1), "step_seconds": 0.5}
    usual |= {"tokens_per_second": 2e4, "mfu": 0.25, "peak_memory_bytes": 2_000_000, "comm_bytes": {"dp_shard": 4000}}
    return json.dumps({"step": step, "skipped_steps": 0, **usual, **values}) + "\n"


def event(kind: str, **values) -> str:
    return json.dumps({"time": time.time(), "event": kind, **values}) + "\n"


def test_mfu_is_smoothed_as_tokens_per_second_are_and_never_above_100_per_cent(tmp_path) -> None:
    seen = state(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(
        row(0, tokens_per_second=1e4, mfu=0.2) + row(1, tokens_per_second=3e4, mfu=0.6)
    )
    seen.refresh()
    assert seen.tokens_per_second == pytest.approx(2e4)
    assert seen.mfu == pytest.approx(0.4)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(row(2, tokens_per_second=1e4, mfu=1.0))
    seen.refresh()
    assert seen.mfu == 1.0


def test_a_file_is_followed_line_by_line_and_from_the_start_when_it_is_replaced(tmp_path) -> None:
    path = tmp_path / "m.jsonl"
    follower = Follower(path)
    assert follower.read() == []
    path.write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert follower.read() == [{"step": 0}, {"step": 1}]
    with open(path, "a") as file:
        file.write('ep": 2}\nnot json\n')
    assert follower.read() == [{"step": 2}]
    (tmp_path / "new").write_text('{"step": 0}\n')
    (tmp_path / "new").replace(path)
    assert follower.read() == [{"step": 0}]
    assert follower.restarted


def test_the_newest_metrics_count_and_steps_count_from_one(tmp_path) -> None:
    run = state(tmp_path)
    assert (run.step, run.seconds_left, run.validation) == (0, None, None)
    (tmp_path / "metrics.jsonl").write_text(row(0) + row(1, validation_loss=4.5))
    run.refresh()
    assert run.step == 2
    assert run.validation == (4.5, 2)
    assert run.seconds_left == pytest.approx(998 * 0.5)
    assert run.tokens_per_second == pytest.approx(2e4)


def test_a_run_prints_at_most_some_twenty_lines_of_metrics(tmp_path, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("fourfold.report.display.time.monotonic", lambda: clock[0])
    lines: list[str] = []
    display = PlainDisplay(state(tmp_path), lines.append)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        for step in range(1000):
            clock[0] += 60.0
            file.write(row(step))
            file.flush()
            display.update()
    assert 20 <= len(lines) <= 22
    assert lines[-1].startswith("step 1000/1000")


def test_events_are_printed_once_and_old_metrics_are_not(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(row(step) for step in range(10)))
    lines: list[str] = []
    display = PlainDisplay(state(tmp_path), lines.append)
    display.begin()
    begun = len(lines)
    (tmp_path / "events.jsonl").write_text(event("resume", step=10) + event("evaluate", step=10, validation_loss=4.0))
    display.update()
    display.update()
    assert lines[begun:] == ["resumed at step 10", "validation loss 4.0000 at step 10"]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_the_panel_fits_its_terminal_and_shows_the_figures(tmp_path, width) -> None:
    run = state(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("".join(row(s, loss=5 - s / 99, skipped_steps=3) for s in range(99)))
    (tmp_path / "events.jsonl").write_text(event("evaluate", step=99, validation_loss=4.125))
    run.refresh()
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(run, width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    if width >= 80:
        for figure in (
            "step 99/1000",
            "4.0101",
            "4.1250",
            "5.2500",
            "20.0 k",
            "25.0 %",
            "2.00 MB",
            "4.00 kB",
            "skipped",
        ):
            assert figure in text, figure


def test_a_peak_that_is_not_measured_is_shown_as_predicted(tmp_path) -> None:
    run = state(tmp_path, predicted_peak_bytes=3_000_000)
    (tmp_path / "metrics.jsonl").write_text(row(0, peak_memory_bytes=None))
    run.refresh()
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(run, 120))
    assert "predicted 3.00 MB" in console.export_text()


def test_the_panel_can_be_drawn_before_anything_is_known(tmp_path) -> None:
    console = Console(width=80, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(state(tmp_path, unigram_entropy_nats=None), 80))


def test_the_ending_sets_the_loss_beside_the_entropy_and_names_commands_that_keep_what_was_stated(tmp_path) -> None:
    run = state(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(row(999))
    (tmp_path / "events.jsonl").write_text(event("finish", step=1000, validation_loss=2.5, sample="def f():\n    pass"))
    run.refresh()
    command = Command(tmp_path / "my run.toml", ("batch.steps=1000", "optimizer.lr=0.1"), 2)
    text = "\n".join(final_lines(run, command, "runs/tiny/report.html"))
    assert "2.5000 nats per token = 1.803 bits per byte" in text
    assert "5.2500 nats per token" in text
    assert "def f():\n      pass" in text
    assert text.splitlines()[-1] == "report           runs/tiny/report.html  (open it in a browser)"
    assert text.splitlines()[-2] == f"run folder       {tmp_path}"
    assert final_lines(run, command, "none: a reason")[-1] == "report           none: a reason"
    assert command.line("batch.steps=2000").endswith("batch.steps=2000 optimizer.lr=0.1 --ranks 2")
    assert "batch.steps=1000 optimizer.lr=0.1 layout.zero=1 --ranks 2 --out" in text
    assert "my run.toml'" in text


def test_numbers_keep_three_digits() -> None:
    assert [format_bytes(n) for n in (0, 999, 1000, 4.86e12, 123456)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "4.86 TB",
        "123 kB",
    ]
    assert [format_count(n) for n in (12, 30_100_000, 9996)] == ["12", "30.1 M", "10.0 k"]
    assert [format_seconds(s) for s in (0.25, 75, 4000, 200000)] == ["0.2 s", "1:15", "1:06:40", "2 d 07:33"]
    assert sparkline([3, 2, 1, float("nan")], 10) == "█▅▁"
    assert sparkline([], 10) == ""


@pytest.mark.parametrize("width", [80, 100, 120])
def test_figures_and_their_names_are_not_cut(tmp_path, width: int) -> None:
    """The longest that there are; no sparkline where there is no room for it."""
    seen = state(tmp_path, predicted_peak_bytes=888_888_888_888)
    (tmp_path / "metrics.jsonl").write_text("".join(row(step, lr=1.5e-12, grad_norm=1234.5678) for step in range(30)))
    (tmp_path / "events.jsonl").write_text(event("start"))
    seen.refresh()
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(seen, width))
    text = console.export_text()
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for name in (
        "loss",
        "validation loss",
        "unigram loss",
        "gradient norm",
        "learning rate",
        "MFU",
        "communication",
        "tokens seen",
    ):
        assert f" {name} " in text
    assert ("▁" in text) == (width > 100)


def test_both_displays_of_a_run_read_one_record(tmp_path) -> None:
    """The terminal's figures and the page's are the same, also of steps that were trained again and of rows that no run writes."""
    config = RunConfig.model_validate({"batch": {"global_sequences": 2, "sequence_length": 8, "steps": 20}})
    folder = RunFolder(tmp_path)
    folder.write(config, {})
    steps = [*range(9), *range(5, 12)]
    rows = [
        {"step": step, "loss": round(4.0 - step / 10, 6), "step_seconds": 2.0, "memory_copy_seconds": 0.25}
        for step in steps
    ]
    odd = [{"step": -1, "loss": 1.0}, {"step": 12, "loss": "none", "step_seconds": -3.0}, {"loss": 9.0}]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *odd]))
    begun = time.time() - 100
    events = [{"event": "launch", "time": begun}, {"event": "start", "step": 0, "time": begun + 10}]
    events += [{"event": "finish", "step": 12, "time": begun + 60}]
    folder.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    terminal, feed = state(tmp_path, num_steps=20), RunFeed(tmp_path)
    assert terminal.refresh()
    assert not terminal.refresh()
    feed.refresh()
    shown = feed.document()
    assert shown["step"] == terminal.step == 13
    assert shown["curves"]["loss"]["values"] == terminal.losses == [round(4.0 - step / 10, 6) for step in range(12)]
    assert shown["goodput"] == document(terminal.goodput.record())
    assert terminal.goodput.kept_seconds == 24.0
    assert terminal.goodput.seconds["saving"] == 3.0
    assert terminal.seconds_left == 2.0 * 7
    assert min(shown["latest"].values()) >= 0


def test_losses_of_named_sets_stand_beside_the_validation_loss(tmp_path) -> None:
    losses = {"code": 2.5, "web": 3.25, "nothing": None, "odd": "x"}
    (tmp_path / "events.jsonl").write_text(event("evaluate", step=10, validation_loss=4.0, validation_losses=losses))
    found = state(tmp_path)
    found.refresh()
    assert describe_event(found.events[0]) == "validation loss 4.0000 at step 10 (code 2.5000, web 3.2500)"
    assert found.validation_losses == {"code": 2.5, "web": 3.25}
    last = final_lines(found, Command(tmp_path / "run.toml"), "none: of a test")
    assert last[1:3] == ["  of code: 2.5000 nats per token", "  of web: 3.2500 nats per token"]
    (tmp_path / "events.jsonl").write_text(event("evaluate", step=10, validation_loss=4.0, validation_losses=[3]))
    found = state(tmp_path)
    found.refresh()
    assert found.validation_losses == {}
