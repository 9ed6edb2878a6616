"""Laws of files with a JSON object a line: both directions give the same rows, and who asks for the end reads the end."""

import json
import random
from itertools import islice
from pathlib import Path

import pytest

from fourfold.config import json_lines
from fourfold.config.json_lines import Follower, json_object, lines_from_end, newest_first, read_jsonl
from fourfold.config.run_rows import step_rows
from fourfold.launch.run_folder import RunFolder
from fourfold.train.metrics import truncate_after
from fourfold.train.peak import known_peak_flops

JUNK = [
    b"",
    b"\0" * 300,
    b"\xff\xfe{",
    b"7",
    b"[1]",
    b'{"step": ',
    b"x" * 5000,
    b'{"step": "x"}',
    b'{"a": "\\ud800"}',
    b'{"b": NaN}',
]


def content(seed: int, ended: bool) -> bytes:
    """Rows with junk between them."""
    draw = random.Random(seed)
    rows = [
        json.dumps({"step": step, "text": "é" * draw.randrange(90)}).encode() for step in range(draw.randrange(1, 200))
    ]
    lines = [line for row in rows for line in ((row, draw.choice(JUNK)) if draw.random() < 0.3 else (row,))]
    return b"\n".join(lines) + b"\n" * ended


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_rows_from_the_end_are_those_from_the_start_turned_round(tmp_path: Path, seed: int, ended: bool) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(content(seed, ended))
    independent = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        independent += [row] if isinstance(row, dict) else []
    assert repr(list(read_jsonl(path))) == repr(independent)
    assert repr(list(newest_first(path))[::-1]) == repr(independent)
    for size in (1, 7, 64, 5001):
        found = list(lines_from_end(path, size))
        assert all(path.read_bytes()[place:].startswith(line) for place, line in found)
        assert [line for _, line in reversed(found)] == [line for line in path.read_bytes().split(b"\n") if line]


def test_a_line_longer_than_any_row_is_left_out_in_both_directions(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 1000)
    path = tmp_path / "m.jsonl"
    long = json.dumps({"step": 1, "text": "x" * 3000}).encode()
    for first, last in ((b'{"step": 0}\n', b'\n{"step": 2}\n'), (b"", b'\n{"step": 2}'), (b'{"step": 0}\n', b"")):
        path.write_bytes(first + long + last)
        expected = [each for each, there in (({"step": 0}, first), ({"step": 2}, last)) if there]
        assert list(read_jsonl(path)) == expected
        assert list(newest_first(path)) == expected[::-1]


@pytest.mark.parametrize("value", [1e300, -0.0, 5e-324, 0.1 + 0.2, 2**80, "\ud800", "\u2028", [1, {"a": None}], True])
def test_an_object_is_what_python_reads(value: object) -> None:
    line = json.dumps({"a": value}).encode()
    assert repr(json_object(line)) == repr(json.loads(line))
    assert json_object(b"[" * 10**5) is None
    assert json_object(b"1") is None


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_dropped_from_the_end_is_what_reading_everything_drops(tmp_path: Path, seed: int, ended: bool) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content(seed, ended))
    rows = list(read_jsonl(path))
    step = random.Random(seed).randrange(0, 220)
    truncate_after(path, step)
    assert list(read_jsonl(path)) == [row for row in rows if isinstance(row.get("step"), int) and row["step"] < step]
    assert path.read_bytes()[-1:] in (b"", b"\n"), "the next row begins a line"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def long_run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(
        "".join(json.dumps({"step": step, "loss": 2.5, "pad": "x" * 900}) + "\n" for step in range(20_000))
    )
    events = [{"event": "start", "step": 0}] + [{"event": "save", "step": step} for step in range(5_000)]
    events += [
        {"event": "machine", "peak_flops": 2.5},
        {"event": "save", "step": 7},
        {"event": "finish", "step": 20_000},
    ]
    folder.events.write_text("".join(json.dumps({"time": 1.0, **event}) + "\n" for event in events))
    return folder


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda folder: folder.steps_done(), 20_000),
        (lambda folder: folder.finished_step(), 20_000),
        (lambda folder: list(step_rows(folder.metrics, 19_990, 19_995)), list(range(19_990, 19_995))),
        (lambda folder: known_peak_flops(folder.path), 2.5),
        (lambda folder: truncate_after(folder.metrics, 19_000) or folder.steps_done(), 19_000),
        (lambda folder: [row["step"] for row in islice(newest_first(folder.metrics), 2)], [19_999, 19_998]),
    ],
    ids=["steps done", "finished step", "steps", "peak", "truncation", "newest"],
)
def test_what_a_resumed_run_asks_is_read_from_the_end(long_run: RunFolder, monkeypatch, ask, answer) -> None:
    read = []

    def counted(line: bytes) -> dict | None:
        read.append(len(line))
        return json_object(line)

    for module in ("fourfold.config.json_lines", "fourfold.train.metrics"):
        monkeypatch.setattr(f"{module}.json_object", counted)
    assert ask(long_run) == answer
    assert sum(read) < 6 * 2**20 < long_run.metrics.stat().st_size


def test_a_file_that_was_cut_and_grew_again_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(50)))
    follower = Follower(path)
    assert len(follower.read()) == 50
    path.write_text("".join(json.dumps({"step": step, "again": 1}) + "\n" for step in range(60)))
    found = follower.read()
    assert follower.restarted
    assert found == [{"step": step, "again": 1} for step in range(60)]
