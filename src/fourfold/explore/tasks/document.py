"""The tasks as the page shows them, and what a learner's setup reaches."""

from collections.abc import Mapping
from typing import Any

from fourfold.api.simulation import simulate
from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.explore.glossary import pieces, slugs
from fourfold.explore.setup import Setup, body_of, read_setup, text_of, texts_of_keys
from fourfold.explore.tasks.query import parse_query
from fourfold.explore.tasks.task import Task, first_task_text, read_tracks, with_numbers


def tasks_document() -> dict[str, Any]:
    """All tracks with their tasks; keys as texts, as an address has them. Raises `UserError` for a term that the glossary lacks."""
    return {
        "tracks": [
            {
                "name": name,
                "title": track.title,
                "lead": track.lead,
                "tasks": [task_document(task) for task in track.tasks],
            }
            for name, track in read_tracks().items()
        ],
        "example": first_task_text(),
    }


def task_document(task: Task) -> dict[str, Any]:
    """One task. Raises `UserError` for a term that the glossary lacks."""
    terms = slugs()

    def paragraphs(text: str) -> list[list[dict[str, Any]]]:
        return [pieces(each, terms, bare=True) for each in text.strip().split("\n\n")]

    return {
        **task.model_dump(include={"id", "title", "level", "aim", "change", "source", "figure", "mark", "guess"}),
        "briefing": paragraphs(task.briefing),
        "start": texts_of_keys(task.start),
        "criteria": [each.model_dump() for each in task.criteria],
        "hints": [pieces(each, terms, bare=True) for each in task.hints],
        "story": paragraphs(task.story),
        "why": [{"text": text, "setup": setup} for text, setup in with_numbers(task.why)],
        "must_move": task.must_move,
        "solution": texts_of_keys(task.solution),
    }


def judged(task: Task, setup: Setup) -> dict[str, Any]:
    """The simulation of a learner's setup, each criterion: what is wanted, what it got, whether it is met, the keys that the task
    is about and whether they moved, the number that it lets a person guess, and those of its explanation. Raises `UserError` where
    a key is changed that the task keeps, and where the setup cannot run."""
    changed = check_locked(task, setup)
    document = simulate(setup.run_input, setup.stated, **setup.options).to_json(advice=False)
    rows = []
    for criterion in task.criteria:
        query = parse_query(criterion.query)
        got = query.of(document)
        rows.append(
            {
                **criterion.model_dump(),
                "path": query.path,
                "comparison": query.comparison,
                "wanted": query.value,
                "got": got,
                "met": query.holds(got),
            }
        )
    moved = {key: key in changed for key in task.must_move}
    guess = None if task.guess is None else parse_query(f"{task.guess.path} > 0").of(document)
    return {
        "task": task.id,
        "won": all(each["met"] for each in rows) and all(moved.values()),
        "criteria": rows,
        "moved": moved,
        "guess": guess,
        "numbers": {path: parse_query(f"{path} > 0").of(document) for path in task.number_paths},
        "simulation": document,
    }


def check_locked(task: Task, setup: Setup) -> list[str]:
    """The keys that differ from the task's start. Raises `UserError` for one that is not among those that may change."""
    start, asked = _keys(read_setup(body_of(task.start))), _keys(setup)
    changed = [key for key in sorted(start.keys() | asked.keys()) if not _same(start.get(key), asked.get(key))]
    for key in changed:
        if key not in task.change:
            kept = f"stays {text_of(start[key])}" if key in start else "stays left out"
            raise UserError(
                f"{key} = {shortened(asked.get(key))}: in this task it {kept}; what may change: {', '.join(task.change)}"
            )
    return changed


def _keys(setup: Setup) -> Mapping[str, Any]:
    run = {"run": setup.run} if setup.run is not None else {}
    return {**run, **setup.stated, **setup.options}


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same, be they stated as numbers or as texts."""
    return one == other or (one is not None and other is not None and text_of(one) == text_of(other))
