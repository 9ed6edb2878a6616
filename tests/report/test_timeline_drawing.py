"""Drawings of timelines: what they show is the timeline's, on a terminal, in plain text, in a picture, in JSON."""

import io
import json
import re
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from fourfold.cli.app import run as run_command
from fourfold.program.schedule import StageTimes, schedule_orders, stage_ranks
from fourfold.program.timeline import Timeline, timeline
from fourfold.report.timeline_svg import timeline_svg
from fourfold.report.timeline_terminal import print_timeline, timeline_lines
from fourfold.report.timeline_text import MOST_ROWS, read_window

SVG = "{http://www.w3.org/2000/svg}"
SHAPES = [
    ("1f1b", 4, 1, 8),
    ("zb_v", 4, 2, 10),
    ("interleaved_1f1b", 3, 3, 7),
    ("1f1b", 1, 1, 12),
    ("zb_h2", 16, 1, 64),
]


def draw(schedule: str, num_ranks: int, virtual: int, microbatches: int, *durations: float) -> Timeline:
    orders = schedule_orders(schedule, num_ranks, virtual, microbatches)
    times = StageTimes.uniform(num_ranks * virtual, *durations)
    return timeline(orders, stage_ranks(schedule, num_ranks, virtual), times)


def test_plain_text_of_1f1b() -> None:
    lines = [line.plain for line in timeline_lines(draw("1f1b", 2, 1, 3, 1.0, 1.0, 1.0), "1f1b", 80, colour=False)]
    assert lines == [
        "1f1b: 2 ranks, 3 microbatches: bubble 25.0 % of a step of 12",
        "time    0                   5                   10        bubble  live",
        "rank 0  F0──F1──········B0──────F2──B1──────····B2──────  25.0 %     2",
        "rank 1  ····F0──B0──────F1──B1──────F2──B2──────········  25.0 %     1",
        "F forward   B backward   · idle   number: microbatch   live: most activations held at once",
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("width", [40, 100, 200])
def test_rows_are_aligned_and_fit(shape: tuple[str, int, int, int], width: int) -> None:
    for colour in (False, True):
        lines = timeline_lines(draw(*shape), shape[0], width, colour)
        rows = [line.plain for line in lines[1:-1]]
        assert len(rows) == shape[1] + 1
        assert len({len(row) for row in rows}) == 1
        assert len(rows[0]) <= max(width, 44)


def test_every_entry_stands_in_its_row_in_order_where_there_is_room() -> None:
    drawn = draw("zb_v", 3, 2, 6)
    for rank, line in enumerate(timeline_lines(drawn, "zb_v", 400, colour=False)[2:-1]):
        row = line.plain.split("  ")[1]
        expected = [(e.op.value if e.stage < 3 else e.op.value.lower()) + str(e.microbatch) for e in drawn.events[rank]]
        assert re.findall(r"[A-Za-z]\d+", row) == expected
        idle = sum(len(list(group)) for sign, group in groupby(row) if sign == "·")
        assert idle * drawn.makespan == pytest.approx(drawn.idle[rank] * len(row))


def test_colours_on_a_terminal_and_none_elsewhere() -> None:
    texts = {}
    for terminal in (True, False):
        out = io.StringIO()
        system = "truecolor" if terminal else None
        console = Console(file=out, width=100, force_terminal=terminal, color_system=system, legacy_windows=False)
        print_timeline(draw("zb_h1", 4, 1, 6), "zb_h1", console)
        texts[terminal] = out.getvalue()
    assert "\x1b[" in texts[True]
    assert "\x1b[" not in texts[False]
    assert "weight gradient" in texts[False]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_picture_has_every_entry_where_and_as_long_as_it_is(shape: tuple[str, int, int, int]) -> None:
    drawn = draw(*shape)
    root = ElementTree.fromstring(timeline_svg(drawn, shape[0]))
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    events = [event for rank in drawn.events for event in rank]
    assert len(cells) == len(events)
    left = min(float(cell.get("x", "")) for cell in cells)
    scale = (float(cells[0].get("width", "")) + 0.8) / (events[0].end - events[0].start)
    for cell, event in zip(cells, events, strict=True):
        assert float(cell.get("x", "")) == pytest.approx(left + event.start * scale, abs=0.02 * scale + 1)
        title = cell.find(f"{SVG}title")
        assert title is not None
        assert f"stage {event.stage}, microbatch {event.microbatch}:" in (title.text or "")


def test_the_picture_stands_alone_and_its_text_stays_inside() -> None:
    svg = timeline_svg(draw("zb_v", 4, 2, 10), "python:<mine>:&")
    assert "href" not in svg
    assert "python:&lt;mine&gt;:&amp;" in svg
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x", "")) <= width
        assert 0 <= float(text.get("y", "")) <= height
    words = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    for word in ("forward", "input gradient", "weight gradient", "idle", "bubble 4.8 %", "rank 3"):
        assert word in words


def test_numbers_are_left_out_of_cells_too_narrow_for_them() -> None:
    drawn = draw("1f1b", 4, 1, 400)
    root = ElementTree.fromstring(timeline_svg(drawn, "1f1b"))
    assert float(root.get("width", "")) < 3000
    assert len(list(root.iter(f"{SVG}text"))) < 40


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("A text.\n")
    (tmp_path / "run.toml").write_text(
        "[model]\nnum_layers = 6\nhidden_size = 32\nnum_heads = 4\nffn_size = 56\n"
        '[data]\ncorpus = "texts"\ntokenizer = "bytes"\n'
        '[batch]\nglobal_sequences = 8\nsequence_length = 16\nsteps = 3\n[run]\ndevice = "cpu"\n'
    )
    return tmp_path


def show(*arguments: str) -> int:
    return run_command(["show", "run.toml", "layout.pp=4", *arguments])


def test_show_timeline_prints_the_schedule_of_the_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("--timeline") == 0
    text = capsys.readouterr().out
    assert "1f1b: 4 ranks, 8 microbatches: bubble 27.3 % of a step of 33" in text
    assert "rank 3" in text


def test_show_timeline_as_json_has_the_numbers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("layout.schedule=zb_v", "layout.virtual_stages=2", "--timeline", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stage_ranks"] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert document["makespan"] == 6 * 8 + 3
    assert document["peak_activations"] == [8.0] * 4
    assert [len(events) for events in document["events"]] == [48] * 4


def test_show_svg_writes_the_picture(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("--svg", "drawn.svg") == 0
    assert "bubble 27.3 %" in (here / "drawn.svg").read_text()
    assert show("--svg", str(here / "none" / "drawn.svg")) == 2
    assert "what works: --svg timeline.svg" in capsys.readouterr().err


def test_show_auto_is_drawn_in_the_times_that_it_was_made_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("layout.schedule=auto", "--timeline") == 0
    assert "FLOP" in capsys.readouterr().out
    assert show("--times", "flops") == 2
    assert "--timeline --times flops" in capsys.readouterr().err


@pytest.mark.parametrize(("schedule", "virtual"), [("zb_h1", 1), ("zb_v", 2)])
def test_both_drawings_explain_what_they_show(schedule: str, virtual: int) -> None:
    drawn = draw(schedule, 4, virtual, 8, 1.0, 1.0, 1.0)
    picture = timeline_svg(drawn, schedule)
    words = ["forward", "input gradient", "weight gradient", "idle"]
    for text in (picture, timeline_lines(drawn, schedule, 160, colour=False)[-1].plain):
        assert all(word in text for word in [*words, "microbatch", "live"])
        assert ("later stages" in text) == (virtual > 1)
    assert "bubble: idle share of the step" in picture


LARGE = ("interleaved_1f1b", 64, 2, 256)


def test_a_large_step_is_sampled_on_a_labelled_axis() -> None:
    drawn = draw(*LARGE)
    lines = timeline_lines(drawn, LARGE[0], 80, colour=False)
    rows = [line.plain for line in lines[1:-1]]
    assert rows[0].startswith("time     0")
    assert len(rows) == 1 + MOST_ROWS
    assert len({len(row) for row in rows}) == 1
    assert len(rows[0]) <= 80
    names = [row.split()[1] for row in rows[1:]]
    assert (names[0], names[-1]) == ("0", "63")
    assert "16 of 64 ranks: --pp-ranks 0-63 shows all" in lines[-1].plain
    assert "it shows what fills most of it; --from 0 --to 14 shows entries" in lines[-1].plain
    cells = rows[1].split()[2]
    scale = len(cells) / drawn.makespan
    for column, letter in enumerate(cells):
        busy = {"": 0.0}
        for event in drawn.events[0]:
            key = event.op.value.lower() if event.stage >= 64 else event.op.value
            overlap = min(event.end, (column + 1) / scale) - max(event.start, column / scale)
            busy[key] = busy.get(key, 0.0) + max(0.0, overlap)
        most = max(busy, key=busy.__getitem__)
        assert letter == (most if sum(busy.values()) * scale >= 0.5 else "·") or busy.get(letter) == pytest.approx(
            busy[most]
        )


def test_a_window_shows_the_entries_of_some_ranks_between_two_microbatches() -> None:
    drawn = draw(*LARGE)
    window = read_window(drawn, "m128", "m129", "0-1,63")
    lines = timeline_lines(drawn, LARGE[0], 4000, False, window=window)
    rows = [line.plain for line in lines[2:-1]]
    assert [" ".join(row.split()[:2]) for row in rows] == ["rank 0", "rank 1", "rank 63"]
    assert "3 of 64 ranks" in lines[-1].plain
    for rank, row in zip(window.ranks, rows, strict=True):
        inside = [e for e in drawn.events[rank] if e.start >= window.begin and e.end <= window.end]
        expected = [(e.op.value if e.stage < 64 else e.op.value.lower()) + str(e.microbatch) for e in inside]
        found = re.findall(r"[A-Za-z]\d+", row.split()[2])
        assert any(found[start : start + len(expected)] == expected for start in (0, 1))


def test_the_axis_names_times_above_their_columns() -> None:
    drawn = draw("1f1b", 4, 1, 8)
    lines = timeline_lines(drawn, "1f1b", 120, False, window=read_window(drawn, "10", "20", None))
    head, row = lines[1].plain, lines[2].plain
    scale = len(row.split()[2]) / 10
    labels = head.split()[1:-2]
    assert labels == ["10", "15"]
    for label in labels:
        assert (head.index(label) - 8) / scale + 10 == pytest.approx(float(label), abs=0.5 / scale)
    assert "10 to 20 of 33; bubble and live: of the full step" in lines[-1].plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--from", "m99"), "--from m99: allowed: a time from 0 to 33"),
        (("--to", "soon"), "--to soon: allowed"),
        (("--from", "20", "--to", "10"), "nothing lies between"),
        (("--pp-ranks", "0-9"), "--pp-ranks 0-9: allowed: pipeline ranks from 0 to 3"),
        (("--pp-ranks", "x"), "--pp-ranks x"),
    ],
)
def test_a_window_that_cannot_be_says_what_works(
    options: tuple[str, ...], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show("--timeline", *options) == 2
    assert message in capsys.readouterr().err
    assert show(*options) == 2
    assert "what works: --timeline" in capsys.readouterr().err
