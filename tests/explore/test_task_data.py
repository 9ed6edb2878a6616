"""Tasks: every start loses, every solution wins, plausible wrong answers do not, and locked keys stay as they are."""

import json
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fourfold.config import UserError
from fourfold.explore.documents import encoded
from fourfold.explore.setup import Malformed, body_of, read_setup
from fourfold.explore.tasks.document import check_locked, judged, tasks_document
from fourfold.explore.tasks.query import parse_query
from fourfold.explore.tasks.task import (
    FOLDER,
    Task,
    first_task_text,
    read_track,
    read_tracks,
    task_named,
    with_numbers,
)
from fourfold.report.palette import PALETTE

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
def test_what_is_to_be_guessed_is_there_and_not_at_an_end_of_the_scale(task: Task) -> None:
    guess = task.guess
    if guess is None:
        assert len(task.must_move) > 1, "what one key wins asks for a prediction"
        return
    truth = verdict(task, {} if guess.of == "start" else task.solution)["guess"]
    assert 1.5 * guess.least < truth < guess.most / 1.1
    written = task.briefing + task.aim + task.title
    assert not re.search(rf"\b{truth / 1e9:.0f} GB", written), "the briefing says what is to be guessed"


@each_task
def test_the_explanation_speaks_of_numbers_and_of_a_part_of_the_picture(task: Task) -> None:
    start, solved = verdict(task, {}), verdict(task, task.solution)
    found_at = {which: found["numbers"] for which, found in (("before", start), ("after", solved))}
    numbers = [(which, path) for path, which in with_numbers(task.why) if which is not None]
    assert numbers
    for which, path in numbers:
        assert isinstance(found_at[which][path], int | float), (which, path)
    assert not re.search(r"\d{2,}(\.\d+)? (GB|%|s|days)\b", re.sub(r"\{.*?\}", "", task.why)), (
        "numbers come from the simulation"
    )
    if task.figure == "pipeline":
        assert start["simulation"]["layout"]["pp"] > 1
        return
    parts = {
        "memory": set(PALETTE["memory"]),
        "time": {"compute", "bubble", "imbalance", *start["simulation"]["time_shares"]["exposed"]},
        "network": {row["axes"] for row in start["simulation"]["communication"]},
    }[task.figure]
    assert task.mark in parts


@each_task
def test_a_task_is_not_won_without_the_keys_that_it_is_about(task: Task) -> None:
    """Even where another way reaches the same numbers: those of each key alone that is to move."""
    for key in task.must_move:
        try:
            found = verdict(task, {each: value for each, value in task.solution.items() if each != key})
        except UserError:  # the others cannot be without it
            continue
        assert found["moved"][key] is False
        assert not found["won"]


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
    assert 40 <= len(TASKS) <= 48
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


def _own(change: tuple[str, str] = ("", "")) -> dict[str, Any]:
    text = first_task_text().replace(*change, 1) if change[0] else first_task_text()
    return {"text": text}


def test_a_task_of_ones_own_is_read_and_judged_as_ours_are() -> None:
    def asked(name: str, body: dict[str, Any]) -> dict[str, Any]:
        return json.loads(encoded(name, body, lambda text, share: None))

    own = asked("own_task", _own(('title = "Eight copies of one model"', 'title = "Mine"')))
    [ours, *_] = tasks_document()["tracks"][0]["tasks"]
    assert own == {**ours, "id": "own-eight-copies", "title": "Mine"}
    assert own["title"] == "Mine"
    assert asked("own_task", {"text": "[[tasks]]\n" + first_task_text()})["id"] == "own-eight-copies"
    task = task_named("eight-copies")
    judged_as_own = asked("task", {**_own(), **body_of({**task.start, **task.solution})})
    assert judged_as_own == {**verdict(task, task.solution), "task": "own-eight-copies"}
    with pytest.raises(UserError, match=r"cluster = .*: in this task it stays dgx-h100:8"):
        asked("task", {**_own(), **body_of({**task.start, "cluster": "dgx-h100:16"})})
    with pytest.raises(Malformed, match="task is missing"):
        asked("task", {**_own(), "task": "eight-copies", **body_of(task.start)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("level = 1", "level = 9"), "level = 9"),
        (("level = 1", "level ="), "the task is no TOML"),
        (('"fits == true"', '"fits = true"'), "criteria.0.query"),
        (("{before memory_bytes}", "{then memory_bytes}"), "{before memory_bytes}, {after memory_bytes}"),
        (('path = "memory_bytes"', 'path = "memory bytes"'), "guess.path"),
        (("most = 1e12", "most = 1e10"), "at least twice as much"),
        (("figure = ", "moved = ['layout.tp']\nfigure = "), "moved states layout.tp; allowed: keys of solution, layout.zero"),
        (("[ZeRO]", "[Zorro]"), "no such term"),
        (('title = "Eight', "x = " + '"' + "y" * 20_000 + '"\ntitle = "Eight'), "allowed: at most 20,000"),
        (('title = "Eight', "[[tasks]]\n[[tasks]]\ntitle = "), "no TOML"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_task_of_ones_own_is_told(change: tuple[str, str], message: str) -> None:
    with pytest.raises(UserError) as found:
        encoded("own_task", _own(change), lambda text, share: None)
    assert message in str(found.value)
    assert not isinstance(found.value, Malformed)
