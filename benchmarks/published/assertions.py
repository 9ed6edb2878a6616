"""Whether free text says something, or denies it or leaves it open."""

import re

_CLAUSES = re.compile(r"[;,\n]|\.\s")
_BEFORE = re.compile(r"\b(no|not|non|never|without|rather than|instead of)\b(\W+\w+){0,3}\W*$")
_AFTER = re.compile(
    r"^[\w ]{0,20}([=: ]|\bis\b|\bare\b)\s*(off|no|not|none|never|false|disabled?|0(?![.\d])|unknown|unclear|unstated|uncertain"
    r"|possible|optional|left out|omitted|excluded|skipped|mentioned)\b|\?"
)


def clauses_of(text: str) -> list[str]:
    """The parts between commas, semicolons and full stops, lower case."""
    return _CLAUSES.split(text.lower())


def asserted(text: str, pattern: str) -> list[str]:
    """The clauses that say so, lower case: those that have the pattern with no word close before or after it that denies it or
    leaves it open."""
    return [clause for clause in clauses_of(text) if says(clause, pattern)]


def says(clause: str, pattern: str) -> bool:
    """Whether one clause, lower case, does."""
    return any(
        not _BEFORE.search(clause[: found.start()]) and not _AFTER.search(clause[found.end() :])
        for found in re.finditer(pattern, clause)
    )
