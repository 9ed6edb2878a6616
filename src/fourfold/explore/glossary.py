"""The glossary of the docs, read for the page: each term with its definition, formula and source.

An entry is a heading of the third level and its paragraphs; one that begins with `*Formula.*` or `*Source.*` is kept apart.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from fourfold.config import UserError
from fourfold.config.errors import did_you_mean

PLACES = (Path(__file__).parents[3] / "docs/glossary.md", Path(__file__).with_name("dist") / "glossary.txt")
"""A clone's file, and the copy that the build puts beside the page."""
_ENTRY = re.compile(r"^### (.+?)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_MARK = r"`(?P<code>[^`]+)`|\*(?P<stressed>[^*]+)\*|\[(?P<label>[^\]]+)\]\((?P<target>[^)]*)\)"
_LINKS = re.compile(_MARK)
_TERMS = re.compile(_MARK + r"|\[(?P<bare>[^\]]+)\]")
_ALIAS = re.compile(r"See \[[^\]]+\]\(#([\w-]+)\)\.")
_OURS, _FORMULA, _SOURCE = "*fourfold.* ", "*Formula.* ", "*Source.* "


def slug_of(name: str) -> str:
    """The anchor of a heading: `data parallelism (DP)` -> `data-parallelism-dp`."""
    return re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-")


def pieces(text: str, slugs: frozenset[str], bare: bool = False) -> list[dict[str, Any]]:
    """Text of one paragraph in parts: `text`, and `term`, the slug of what it stands for, or None; `code`: whether it is written as
    it is typed. A term is a link to an anchor; with `bare`, a word in brackets too. Raises `UserError` for one that the glossary
    lacks."""
    found, end = [], 0
    line = " ".join(text.split())
    for match in (_TERMS if bare else _LINKS).finditer(line):
        found.append(_piece(line[end : match.start()]))
        end = match.end()
        marks = match.groupdict()
        if word := marks.get("bare"):
            found.append(_piece(word, _known(slug_of(word), slugs)))
        elif label := marks["label"]:
            anchor = marks["target"].startswith("#")
            found.append(_piece(label, _known(marks["target"][1:], slugs) if anchor else None))
        else:
            found.append(_piece(marks["code"] or marks["stressed"], code=marks["code"] is not None))
    return [each for each in [*found, _piece(line[end:])] if each["text"]]


def _piece(text: str, term: str | None = None, code: bool = False) -> dict[str, Any]:
    return {"text": text, "term": term, "code": code}


def _known(slug: str, slugs: frozenset[str]) -> str:
    if slug not in slugs:
        near = did_you_mean(slug, slugs)
        raise UserError(f"[{slug}]: no such term in docs/glossary.md; {near}allowed: its headings, for example [ZeRO]")
    return slug


def read_glossary(text: str) -> list[dict[str, Any]]:
    """`slug`, `name`, `definition` (see `pieces`), `formula` and `source` (text or None), `ours`: a word of this project. A term
    that only refers to another has that one's texts. Raises `UserError` for a reference to nothing."""
    bodies = {slug_of(name): (name, body.strip()) for name, body in _ENTRY.findall(text)}
    slugs = frozenset(bodies)
    found = []
    for slug, (name, body) in bodies.items():
        alias = _ALIAS.fullmatch(body)
        content = bodies[_known(alias[1], slugs)][1] if alias else body
        paragraphs = [" ".join(each.split()) for each in content.split("\n\n")]
        formula, source = (_marked(paragraphs, mark) for mark in (_FORMULA, _SOURCE))
        definition = " ".join(each for each in paragraphs if not each.startswith((_FORMULA, _SOURCE)))
        found.append(
            {
                "slug": slug,
                "name": name,
                "definition": pieces(definition.removeprefix(_OURS), slugs),
                "formula": formula,
                "source": source,
                "ours": definition.startswith(_OURS),
            }
        )
    return found


def _marked(paragraphs: list[str], mark: str) -> str | None:
    return next((each.removeprefix(mark).replace("`", "") for each in paragraphs if each.startswith(mark)), None)


@lru_cache(maxsize=1)
def glossary() -> list[dict[str, Any]]:
    """The glossary of this installation; empty where there is neither a clone nor a built page."""
    path = next((each for each in PLACES if each.is_file()), None)
    return read_glossary(path.read_text(encoding="utf-8")) if path is not None else []


def slugs() -> frozenset[str]:
    """All terms."""
    return frozenset(each["slug"] for each in glossary())
