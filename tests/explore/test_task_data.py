"""Tasks: every start loses, every solution wins, plausible wrong answers do not, and locked keys stay as they are."""

import json
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fourfold.config import UserError
from fourfold.explore.documents import encoded
from fourfold.explore.setup import Malformed, read_setup
from fourfold.explore.tasks.document import check_locked, judged, tasks_document
from fourfold.explore.tasks.query import parse_query
from fourfold.explore.tasks.task import FOLDER, Task, body_of, read_track, read_tracks, task_named

TASKS = [task for track in read_tracks().values() for task in track.tasks]
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)


@lru_cache(maxsize=200)
def _verdict(name: str, changes: str) -> dict[str, Any]:
    task = task_named(name)
    return judged(task, read_setup(body_of({**task.start, **json.loads(changes)})))


def verdict(task: Task, changes: dict[str, Any]) -> dict[str, Any]:
    return _verdict(task.id, json.dumps(changes))


@each_task
def test_the_start_loses(task: Task) -> None:
    found = verdict(task, {})
    assert not found["won"]
    assert all(row["got"] is not None for row in found["criteria"])


@each_task
def test_the_solution_wins(task: Task) -> None:
    found = verdict(task, task.solution)
    assert found["won"], found["criteria"]


@each_task
@pytest.mark.parametrize(
    "part", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.rest)], ids=["first", "others"]
)
def test_wrong_answers_do_not_win(task: Task, part: slice) -> None:
    for changes in task.wrong[part]:
        assert not verdict(task, changes)["won"], changes


@each_task
def test_no_change_to_a_locked_key_is_judged(task: Task) -> None:
    locked = {key: value for key, value in task.start.items() if key not in task.change}
    for key in locked:
        with pytest.raises(UserError, match="in this task it stays") as found:
            check_locked(task, read_setup(body_of({**task.start, key: "another"})))
        assert not isinstance(found.value, Malformed)
    for more in ("layout.prefetch", "optimizer.lr", "price", "gemm_dtype"):
        if more not in task.start and more not in task.change:
            with pytest.raises(UserError, match="stays left out"):
                check_locked(task, read_setup(body_of({**task.start, more: 3 if "." in more else "3"})))


def test_a_task_may_not_begin_from_a_run_of_the_literature() -> None:
    task = task_named("every-three-hours")
    with pytest.raises(UserError, match="run = "):
        check_locked(task, read_setup({**body_of(task.start), "run": "preset:llama3-405b-16k"}))


def test_numbers_and_texts_of_one_value_are_the_same() -> None:
    task = task_named("cheapest-in-a-week")
    body = body_of(task.start)
    check_locked(task, read_setup({**body, "price": 2.5}))
    overrides = {**body["overrides"], "batch.global_sequences": 512.0}
    check_locked(task, read_setup({**body, "overrides": overrides}))


def test_the_server_judges_and_refuses() -> None:
    def asked(body: dict[str, Any]) -> dict[str, Any]:
        return json.loads(encoded("task", body, lambda text, share: None))

    task = task_named("eight-copies")
    body = {"task": task.id, **body_of({**task.start, **task.solution})}
    found = asked(body)
    assert found["won"]
    assert found["criteria"][0] | {"text": ""} == {
        "query": "fits == true", "text": "", "path": "fits", "comparison": "==", "wanted": True, "got": True, "met": True,
    }  # fmt: skip
    with pytest.raises(
        UserError, match=r"cluster = .*: in this task it stays dgx-h100:8; what may change: layout\.zero"
    ):
        asked(body | {"cluster": "dgx-h100:16"})
    with pytest.raises(UserError, match="did you mean eight-copies"):
        asked(body | {"task": "eight-copy"})
    with pytest.raises(Malformed, match="task is missing"):
        asked({key: value for key, value in body.items() if key != "task"})


def test_tracks_are_of_rising_difficulty_and_enough() -> None:
    assert 25 <= len(TASKS) <= 32
    for track in read_tracks().values():
        levels = [task.level for task in track.tasks]
        assert levels[0] == 1
        assert levels[-1] == 3
        assert max(before - after for before, after in pairwise(levels)) <= 1


def test_the_document_marks_terms() -> None:
    [first, *_] = tasks_document()["tracks"][0]["tasks"]
    terms = [piece["term"] for paragraph in first["briefing"] for piece in paragraph if piece["term"]]
    assert terms[0] == "data-parallelism-dp"
    assert first["start"]["layout.zero"] == "0"


DOCUMENT = {
    "mfu": 0.4,
    "fits": True,
    "device": "h100-sxm",
    "run": {"dollars": None},
    "communication": [{"axes": "tp", "sent_bytes": 5.0}, {"axes": "dp_shard+cp", "sent_bytes": 7.0}],
}


@pytest.mark.parametrize(
    ("query", "got", "met"),
    [
        ("mfu >= 0.4", 0.4, True),
        ("mfu > 0.4", 0.4, False),
        ("fits == true", True, True),
        ("fits >= 1", True, False),
        ('device == "h100-sxm"', "h100-sxm", True),
        ("communication[axes=tp].sent_bytes <= 5", 5.0, True),
        ("communication[axes=dp_shard+cp].sent_bytes < 7", 7.0, False),
        ("communication[1].sent_bytes != 5", 7.0, True),
        ("communication[5].sent_bytes < 7", None, False),
        ("communication[axes=pp].sent_bytes < 7", None, False),
        ("run.dollars <= 1e9", None, False),
        ("nothing.at.all != 1", None, False),
        ("mfu[0] > 0", None, False),
    ],
)
def test_a_query_reads_a_document(query: str, got: Any, met: bool) -> None:
    found = parse_query(query)
    assert found.of(DOCUMENT) == got
    assert found.holds(found.of(DOCUMENT)) is met


@pytest.mark.parametrize(
    "query",
    [
        "mfu",
        "mfu = 1",
        "mfu >= much",
        "mfu >= true",
        "__class__ == 1()",
        "a..b == 1",
        ".a == 1",
        "a[b] == 1",
        "a( == 1",
    ],
)
def test_what_is_no_query_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match="a query that works"):
        parse_query(query)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("level = 1", "level = 9", "tasks.eight-copies.level = 9"),
        ('"fits == true"', '"fits = true"', "tasks.eight-copies.criteria.0.query"),
        ("solution = { layout.zero = 1 }", "solution = { layout.tp = 2 }", "solution states layout.tp; allowed: keys of change"),
        ('cluster = "dgx-h100:8"', 'cluster = "../x.toml"', "files cannot be named"),
        ('title = "Eight', 'titel = "Eight', "tasks.eight-copies.title"),
        ('id = "eight-copies"', 'id = "Eight Copies"', "tasks.Eight Copies.id"),
        ("[[tasks]]", "[[tasks]", "Expected"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_data_names_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "memory.toml"
    text = (FOLDER / "memory.toml").read_text(encoding="utf-8")
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UserError) as found:
        read_track(path)
    assert message in str(found.value)
    assert str(path) in str(found.value)
