"""A run's folder as a document: nothing lost, nothing invented, whatever the files hold."""

import inspect
import json
import os
import re
from pathlib import Path

import pytest

from fourfold.api.run_feed import RunFeed
from fourfold.config import UserError
from fourfold.config.json_lines import Follower
from fourfold.report.run_files import check_files
from fourfold.report.run_state import describe_event
from tests.report.test_comparison import as_predicted


def rows(path: Path, first: int, last: int, how: str = "a") -> None:
    with path.open(how) as file:
        for step in range(first, last):
            file.write(
                json.dumps({"step": step, "loss": 9.0 - step, "step_seconds": 0.5, "comm_bytes": {"pp": 1}}) + "\n"
            )


def document(feed: RunFeed) -> dict:
    feed.refresh()
    found = feed.document()
    json.dumps(found, allow_nan=False)
    return found


def test_the_document_follows_a_run_that_grows_and_resumes(tmp_path: Path) -> None:
    folder = as_predicted(tmp_path / "run")
    feed = RunFeed(folder.path)
    first = document(feed)
    assert (first["step"], first["curves"], first["state"]) == (0, {}, "not started")
    rows(folder.metrics, 0, 5)
    folder.events.write_text(json.dumps({"time": 10.0, "event": "launch"}) + "\n")
    assert document(feed)["curves"]["loss"]["values"] == [9.0, 8.0, 7.0, 6.0, 5.0]
    with folder.metrics.open("a") as file:
        file.write('{"step": 5, "lo')  # being written
    assert document(feed)["step"] == 5
    with folder.metrics.open("a") as file:
        file.write('ss": 4.0}\n')
    assert document(feed)["step"] == 6
    aside = tmp_path / "aside"
    rows(aside, 0, 3)
    aside.replace(folder.metrics)  # a resumed run writes the kept steps anew
    again = document(feed)
    assert (again["step"], again["latest"]["loss"]) == (3, 7.0)
    rows(folder.metrics, 3, 8)
    with folder.events.open("a") as file:
        file.write('{"time": 10, "event": "start", "step": 0}\n{"time": 14, "event": "finish", "step": 8}\n')
    last = document(feed)
    assert (last["step"], last["state"], last["num_events"]) == (8, "finished", 3)
    assert last["goodput"]["kept_seconds"] == pytest.approx(4.0)
    aside.write_text('{"time": 20, "event": "launch"}\n')
    aside.replace(folder.events)
    assert document(feed)["num_events"] == 1


def test_a_reader_of_blocks_leaves_out_lines_without_end(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 0}\n' + b"x" * 5000 + b'\n{"step": 1}\n' + b"[" * 3000 + b"\n" + b'{"step": 2}\n')
    follower, found = Follower(path), []
    for _ in range(50):
        found += follower.read(1000)
        if not follower.more:
            break
    assert found == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert follower.read(1000) == []


def test_a_feed_that_is_behind_tells_how_the_run_stands_and_that_it_is(tmp_path: Path, monkeypatch) -> None:
    """Read in parts it ends as one that reads all at once."""
    monkeypatch.setattr("fourfold.config.json_lines._BLOCK_BYTES", 2**12)
    folder = as_predicted(tmp_path / "run")
    rows(folder.metrics, 0, 500)
    at_once, feed, looks = document(RunFeed(folder.path)), RunFeed(folder.path), 0
    feed.refresh(2)
    while (found := feed.document())["notes"] != at_once["notes"]:
        assert (found["step"], found["latest"]) == (500, at_once["latest"])
        assert "still being read" in found["notes"][-1]
        assert found["curves"]["loss"]["steps"][-1] < 499
        feed.refresh(2)
        looks += 1
    assert looks > 2
    assert {**found, "now": 0} == {**at_once, "now": 0}


HOSTILE = [
    b"\xff\xfe\x00\n",
    b"[" * 200_000 + b"\n",
    b'{"step": 0, "loss": NaN, "grad_norm": Infinity, "lr": 1e999}\n',
    b'{"step": 1e300, "loss": 1}\n{"step": -5, "loss": 1}\n{"step": ' + b"9" * 400 + b', "loss": 1}\n',
    b'{"time": "soon", "event": {"a": 1}, "step": [1], "message": {"b": 2}}\n',
    b'{"time": ' + b"9" * 400 + b', "event": "finish", "validation_loss": ' + b"9" * 400 + b"}\n",
    b'{"time": 1, "event": "straggler", "ratio": "x", "rank": "<b>"}\n',
    b'{"time": 1, "event": "save", "seconds": "long", "held_seconds": []}\n{"event": "launch", "time": null}\n',
    b"".join(b'{"step": %d, "key%d": 1}\n' % (n, n) for n in range(500)),
    b'{"' + b"k" * 5000 + b'": 1, "step": 0}\n',
    b"x" * 20_000_000,
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_are_left_out(tmp_path: Path, content: bytes) -> None:
    folder = as_predicted(tmp_path / "run")
    folder.metrics.write_bytes(content)
    folder.events.write_bytes(content)
    found = document(RunFeed(folder.path))
    assert len(found["curves"]) <= 64
    assert len(json.dumps(found)) < 2_000_000


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "events.jsonl", "progress.bin", "measured", "measured/rank-00000.json", "run.toml"]
)
def test_links_out_of_the_folder_pipes_and_folders_are_refused(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text('{"step": 0, "loss": 1.0}\n')
    folder = as_predicted(tmp_path / "run").path
    path = folder / name
    if path.is_dir():
        path.rename(tmp_path / "elsewhere")
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "elsewhere" if name == "measured" else outside)
    with pytest.raises(UserError, match="link out of the run's folder"):
        check_files(folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="is no"):
        RunFeed(folder).refresh()
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="link to nothing"):
        check_files(folder)


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    folder = as_predicted(tmp_path / "run")
    rows(folder.path / "all.jsonl", 0, 2)
    folder.metrics.symlink_to("all.jsonl")
    assert document(RunFeed(folder.path))["step"] == 2


@pytest.mark.parametrize("content", [b"x" * 640, bytes(64), os.urandom(256), b"\xff" * 64 * 4])
def test_a_file_of_counters_that_no_rank_wrote_names_no_place(tmp_path: Path, content: bytes) -> None:
    folder = as_predicted(tmp_path / "run")
    (folder.path / "progress.bin").write_bytes(content)
    for rank in document(RunFeed(folder.path))["ranks"]:
        assert rank["instruction"] in ("", "end")


def test_code_that_a_run_file_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = as_predicted(tmp_path / "run")
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = folder.run_file.read_text().replace('schedule = "1f1b"', 'schedule = "python:hostile:order"')
    assert "python:hostile" in text
    folder.run_file.write_text(text)
    found = document(RunFeed(folder.path))
    assert "names Python code" in found["notes"][0]
    assert not (tmp_path / "ran").exists()


def test_an_event_says_all_that_its_line_says(tmp_path: Path) -> None:
    """The feed takes few keys of an event, and every one that its text is made of."""
    source = inspect.getsource(describe_event)
    stated = {key: f"the {key}" for key in re.findall(r"event\.get\(['\"](\w+)", source)}
    numbers = {"step": 7, "validation_loss": 2.5, "ratio": 3.0, "peak_flops": 9.3e10}
    for kind in ("phase", *re.findall(r'^        "(\w+)": ', source, re.MULTILINE), "unknown"):
        event = {**stated, **numbers, "event": kind, "time": 1.0}
        folder = as_predicted(tmp_path / kind)
        folder.events.write_text(json.dumps(event) + "\n")
        [found] = document(RunFeed(folder.path))["events"]
        assert found["text"] == describe_event(event)
