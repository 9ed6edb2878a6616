"""Holds code and docs to the glossary's words: `words.toml` bans, `words_allowed.toml` counts what is still there, per file.

python -m tools.words             fails where a file uses a banned word more often than it may
python -m tools.words --all       prints every place, allowed or not
python -m tools.words --record    writes the counts anew; refuses where a word's total over all files would grow
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE, ALLOWED = Path("tools/words.toml"), Path("tools/words_allowed.toml")
_SUFFIXES = (".md", ".py", ".toml", ".yml", ".css", ".sh", "Makefile", "run")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
STARTS = ("docstrings", "sentences")
"""Places whose beginning alone is compared."""
_TEXT_TOKENS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


@dataclass(frozen=True)
class Word:
    """One banned word. `places`: some of text, names, sentences, docstrings."""

    word: str
    pattern: re.Pattern[str]
    use: str
    places: frozenset[str]


@dataclass(frozen=True)
class Use:
    """A place where a banned word stands."""

    path: str
    line: int
    found: str
    word: Word

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.found.split())!r}: use {self.word.use}"


@dataclass(frozen=True)
class UnderWay:
    """Files and folders that another change is in, by patterns of their paths, and the words that they may still have."""

    paths: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()

    def spares(self, path: str, word: Word) -> bool:
        """Whether a file may have a word for now."""
        return word.word in self.words and any(fnmatch(path, each) for each in self.paths)


@dataclass(frozen=True)
class Table:
    """`words.toml`, read."""

    words: tuple[Word, ...]
    folders: tuple[str, ...]
    files: tuple[str, ...]
    skip: tuple[str, ...]
    under_way: UnderWay


def read_table(path: Path) -> Table:
    """The table of words in a file. Raises `ValueError` for an unknown key, and for an exemption of a word that is none."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    words = []
    for entry in document["words"]:
        if unknown := entry.keys() - {"word", "pattern", "use", "in"}:
            raise ValueError(f"{path}: {entry['word']!r} has unknown keys {sorted(unknown)}")
        pattern = _compiled(entry.get("pattern", entry["word"]))
        words.append(Word(entry["word"], pattern, entry["use"], frozenset(entry.get("in", ("text", "names")))))
    check, listed = document["check"], document.get("under_way", {})
    under_way = UnderWay(tuple(listed.get("paths", ())), frozenset(listed.get("words", ())))
    if strangers := under_way.words - {word.word for word in words}:
        raise ValueError(f"{path}: under_way.words has {sorted(strangers)}, which no entry bans")
    folders, files, skip = (tuple(check[key]) for key in ("folders", "files", "skip"))
    return Table(tuple(words), folders, files, skip, under_way)


def _compiled(pattern: str) -> re.Pattern[str]:
    spaced = pattern.replace(" ", r"[\s_-]+")
    return re.compile(f"(?<![A-Za-z0-9])(?:{spaced})(?![A-Za-z0-9])", re.IGNORECASE)


def uses_in(path: str, source: str, table: Table) -> list[Use]:
    """Every banned word in one file, in the order of lines."""
    found: list[Use] = []
    for place, line, text in _pieces(path, source):
        taken: list[tuple[int, int]] = []
        for word in (word for word in table.words if place in word.places and not table.under_way.spares(path, word)):
            matches = word.pattern.finditer(text) if place not in STARTS else filter(None, [word.pattern.match(text)])
            for match in matches:
                if all(match.end() <= start or end <= match.start() for start, end in taken):
                    taken.append(match.span())
                    found.append(Use(path, line + text.count("\n", 0, match.start()), match[0], word))
    return sorted(found, key=lambda use: use.line)


def _pieces(path: str, source: str) -> Iterator[tuple[str, int, str]]:
    """(place, first line, text)."""
    yield "names", 1, _split(Path(path).stem)
    if not path.endswith(".py"):
        yield "text", 1, source
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXT_TOKENS:
            yield "text", token.start[0], token.string
    tree = ast.parse(source)
    for line, name in _defined(tree):
        yield "names", line, _split(name)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield "docstrings", value.lineno, value.value.lstrip()
                yield from (("sentences", value.lineno + line, text) for line, text in _sentences(value.value))


def _sentences(docstring: str) -> Iterator[tuple[int, str]]:
    """(line from 0, text) of each sentence that is no question."""
    for match in re.finditer(r"(?:[^.!?\n]|[.!?](?!\s|$)|\n(?!\s*\n))+(?:[.!?]|\n|$)", docstring):
        text = match[0].lstrip()
        if text and not text.endswith("?"):
            yield docstring.count("\n", 0, match.start() + len(match[0]) - len(text)), text


def _defined(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names that a file gives: of functions, classes, arguments, variables, fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def _split(name: str) -> str:
    """`numTokens` and `num_tokens` -> `num tokens`."""
    return _CAMEL.sub(" ", name).replace("_", " ").strip().lower()


def scan(root: Path, table: Table) -> list[Use]:
    """Every use in the files that the table names."""
    found: list[Use] = []
    for path in _paths(root, table):
        name = path.relative_to(root).as_posix()
        if not any(name == skip or name.startswith(f"{skip}/") for skip in table.skip):
            found += uses_in(name, path.read_text(encoding="utf-8"), table)
    return found


def _paths(root: Path, table: Table) -> list[Path]:
    listed = [root / name for name in table.files if (root / name).is_file()]
    for folder in table.folders:
        listed += [p for p in (root / folder).rglob("*") if p.is_file() and p.name.endswith(_SUFFIXES)]
    return sorted(p for p in listed if not any(part in ("__pycache__", "node_modules") for part in p.parts))


Counts = dict[str, dict[str, int]]


def counted(uses: list[Use]) -> Counts:
    """How often each file uses each word."""
    counts: Counts = {}
    for use in uses:
        row = counts.setdefault(use.path, {})
        row[use.word.word] = row.get(use.word.word, 0) + 1
    return counts


def excess(uses: list[Use], allowed: Counts) -> list[Use]:
    """Uses of a word in files that have more of it than they may."""
    counts = counted(uses)
    return [u for u in uses if counts[u.path][u.word.word] > allowed.get(u.path, {}).get(u.word.word, 0)]


def totals(counts: Counts) -> Counter[str]:
    """How often each word is used over all files."""
    result: Counter[str] = Counter()
    for row in counts.values():
        result.update(row)
    return result


def written(counts: Counts) -> str:
    """`words_allowed.toml`."""
    lines = [
        "# Uses of banned words that are still there, per file. Counts only go down: python -m tools.words --record"
    ]
    for path in sorted(counts):
        lines += ["", f'["{path}"]', *(f'"{word}" = {count}' for word, count in sorted(counts[path].items()))]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Exit code: 0 within what is allowed, 1 beyond it, 2 wrong use."""
    if arguments not in ([], ["--all"], ["--record"]):
        print(f"usage: python -m tools.words [--all | --record], not {' '.join(arguments)}", file=sys.stderr)
        return 2
    uses = scan(ROOT, read_table(ROOT / TABLE))
    known = ROOT / ALLOWED
    allowed: Counts = tomllib.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
    if arguments == ["--all"]:
        print("\n".join(map(str, uses)))
        return 0
    before, now = totals(allowed), totals(counted(uses))
    if arguments == ["--record"]:
        grown = [f"{word}: {before[word]} -> {now[word]}" for word in now if now[word] > before[word]]
        if grown and known.is_file():
            print("not recorded, since these words are used more often than before:\n  " + "\n  ".join(grown))
            return 1
        known.write_text(written(counted(uses)), encoding="utf-8")
        print(f"recorded: {now.total()} uses, {before.total() - now.total()} fewer")
        return 0
    beyond = excess(uses, allowed)
    if beyond:
        print("\n".join(map(str, beyond)))
        print(f"{len(beyond)} uses of words that docs/glossary.md replaces, in files that may have fewer of them")
        return 1
    if now.total() < before.total():
        print(f"{before.total() - now.total()} fewer than allowed: python -m tools.words --record")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
