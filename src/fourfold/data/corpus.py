"""Resolves `data.corpus`: the files behind "stdlib", a folder, a file, a glob or a URL, or files of token ids.

The corpus "stdlib" is the Python sources of the running machine's standard library, read where they lie.
"""

import glob
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath

import fsspec

from fourfold.config import UserError
from fourfold.config.beside import where_looked
from fourfold.data.source import Source, UnreadFile
from fourfold.data.token_files import SUFFIXES, TokenFile

SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Names of folders left out wherever they stand: tests, installed packages, compiled files."""

_GENERATED = re.compile(r"(?i)\b(auto-?generated|generated\s+(by|from|with|and used))\b")
_HEADER_LINES = 4
_LITERAL_LINE = re.compile(r"\s*(?:[rRuUbBfF]{0,2}['\"]|-?\d)")
_TABLE_SHARE = 0.7
_TABLE_MIN_CHARS = 4096
WORKS = (
    'what works: corpus = "stdlib", a folder, a file, a glob such as "texts/*.jsonl", a Megatron .bin/.idx pair, or '
    ".npy or .bin files of token ids"
)


def stdlib_root() -> Path:
    """The folder of the standard library of the Python that runs."""
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files() -> Iterator[Path]:
    """Every `.py` file outside `SKIPPED_FOLDERS` and hidden folders, in no particular order, tables included."""
    for folder, subfolders, names in os.walk(stdlib_root()):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if name.endswith(".py") and not name.startswith("."))


def is_generated_table(text: str) -> bool:
    """Whether a source file is a generated table rather than something a person wrote.

    The rule: one of its first four lines says that it is generated, or it has at least 4,096 characters and 70 % of
    them stand on lines that begin with a string or number literal. This leaves out the character maps of `encodings`,
    `pydoc_data/topics.py`, `html/entities.py`, `_sysconfigdata*.py` and their like, without a list of names.
    """
    lines = text.split("\n")
    if _GENERATED.search("\n".join(lines[:_HEADER_LINES])):
        return True
    if len(text) < _TABLE_MIN_CHARS:
        return False
    literal_chars = sum(len(line) + 1 for line in lines if _LITERAL_LINE.match(line))
    return literal_chars >= _TABLE_SHARE * len(text)


@dataclass(frozen=True)
class CorpusFiles:
    """The files of a text corpus, sorted by their path below its root. `skipped`: how many are none of it by a rule, by that rule;
    `unread`: files and folders of it that cannot be read."""

    sources: list[Source]
    skipped: Counter[str] = field(default_factory=Counter)
    unread: list[UnreadFile] = field(default_factory=list)


def list_sources(name: str, exclude: Path) -> CorpusFiles:
    """The files of a text corpus.

    Hidden files and folders (a name that begins with a dot) are skipped, except where they are named outright. A pipe, a socket
    or the like is not read, nor is a link to a folder, which could form a loop. Nothing below the folder `exclude` belongs to a
    corpus: the cache may lie inside it.
    Raises `UserError` naming `data.corpus` when nothing is there.
    """
    if name == "stdlib":
        return _list_stdlib()
    if "://" in name:
        return _list_remote(name)
    if not name:
        raise UserError(f"data.corpus = {name!r}: names nothing; {WORKS}")
    local = fsspec.filesystem("file")
    root = Path(name).expanduser()
    base: PurePath = root
    if root.is_file():
        return CorpusFiles([Source(root.name, str(root.absolute()), local)])
    if root.is_dir():
        paths = _walk(root)
    elif matches := [Path(match) for match in glob.glob(str(root), recursive=True)]:
        paths = (path for match in matches for path in (_walk(match) if match.is_dir() else [match]))
        base = _stem(root)
    else:
        raise UserError(f"data.corpus = {name!r}: there is no such folder, file or match{where_looked(name)}; {WORKS}")
    return _collect(base, _outside(exclude, paths))


def token_files(name: str, exclude: Path, dtype: str) -> list[TokenFile]:
    """The files of a corpus of token ids, sorted by path: a Megatron pair, or a file, folder or glob of nothing but `.npy` and
    `.bin`. Empty for a corpus of text. `dtype`: as stated, or "". Raises `UserError` for half of a pair, and for a URL."""
    if name == "stdlib":
        return []
    if "://" in name:
        if name.endswith(SUFFIXES):
            raise UserError(
                f"data.corpus = {name!r}: token ids are mapped into memory, which takes a file; what works: copy it to a disk"
            )
        return []
    if (prefix := megatron_prefix(name)) is not None:
        return [TokenFile(prefix, "pair")]
    if not name or not (Path(name).expanduser().exists() or glob.has_magic(name)):
        return []
    paths = [Path(source.location) for source in list_sources(name, exclude).sources]
    if not paths or any(path.suffix not in SUFFIXES for path in paths):
        return []
    return [
        TokenFile(str(path.with_suffix("")), "pair")
        if path.suffix == ".bin" and path.with_suffix(".idx").is_file()
        else TokenFile(str(path), "array", dtype)
        for path in paths
    ]


def megatron_prefix(name: str) -> str | None:
    """The common path of a Megatron pair when `name` is one (with either suffix or none), else None.

    Raises `UserError` when one half of the pair is missing.
    """
    if name == "stdlib" or "://" in name:
        return None
    path = Path(name).expanduser().absolute()
    has_suffix = path.suffix in (".bin", ".idx")
    prefix = str(path.with_suffix("")) if has_suffix else str(path)
    halves = [os.path.isfile(prefix + suffix) for suffix in (".bin", ".idx")]
    if all(halves) and (has_suffix or not path.exists()):
        return prefix
    if path.suffix == ".idx" and halves[1]:
        raise UserError(f"data.corpus = {name!r}: the other half of the Megatron pair is missing: {prefix}.bin")
    return None


def _list_stdlib() -> CorpusFiles:
    root, local = stdlib_root(), fsspec.filesystem("file")
    sources, skipped = [], Counter[str]()
    for path in stdlib_files():
        # A file that is not UTF-8 is left for the scan to refuse: here it only has to be no table.
        if is_generated_table(path.read_text(encoding="utf-8", errors="replace")):
            skipped["generated table"] += 1
        else:
            sources.append(Source(path.relative_to(root).as_posix(), str(path), local))
    return CorpusFiles(sorted(sources, key=lambda source: source.path), skipped)


def _collect(base: PurePath, paths: Iterable[Path]) -> CorpusFiles:
    local = fsspec.filesystem("file")
    found = CorpusFiles([])
    for relative, path in sorted((path.relative_to(base).as_posix(), path) for path in paths):
        if _is_hidden(relative):
            found.skipped["hidden"] += 1
        elif path.is_dir():
            found.unread.append(
                UnreadFile(relative, "a link to a folder, which is not followed", _size_of_folder(path))
            )
        elif not path.is_file():
            reason = "a link to nothing" if path.is_symlink() and not path.exists() else "not a regular file"
            found.unread.append(UnreadFile(relative, reason, 0))
        else:
            found.sources.append(Source(relative, str(path.absolute()), local))
    return found


def _walk(root: Path) -> Iterator[Path]:
    """Files below a folder, and links to folders outside of it. These are not followed: they can form a loop. The target of a
    link inside the folder is found where it lies."""

    def refuse(error: OSError) -> None:
        raise UserError(f"data.corpus: {error.filename}: this folder cannot be read: {error.strerror}")

    top = root.resolve()
    for folder, subfolders, names in os.walk(root, onerror=refuse):
        yield from (Path(folder, name) for name in names)
        for path in (Path(folder, name) for name in subfolders if os.path.islink(os.path.join(folder, name))):
            target = path.resolve()
            if not target.is_relative_to(top) and not top.is_relative_to(target):
                yield path


def _size_of_folder(root: Path) -> int:
    """Bytes of the files below a folder, as far as they can be seen."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(OSError):
                total += os.path.getsize(os.path.join(folder, name))
    return total


def _outside(exclude: Path, paths: Iterable[Path]) -> set[Path]:
    folder = exclude.expanduser().resolve()
    return {path for path in paths if not path.resolve().is_relative_to(folder)}


def _stem(pattern: PurePath) -> PurePath:
    """The folder above the first part of a glob that holds a wildcard."""
    plain: list[str] = []
    for part in pattern.parts:
        if glob.has_magic(part):
            break
        plain.append(part)
    return type(pattern)(*plain)


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(relative).parts)


def _list_remote(url: str) -> CorpusFiles:
    """Files behind a URL that fsspec can open (s3://, gs://, https://, memory://)."""
    try:
        filesystem, root = fsspec.core.url_to_fs(url)
        if filesystem.isfile(root):
            locations, base = [root], root.rpartition("/")[0]
        elif glob.has_magic(root):
            locations = [path for path in filesystem.glob(root) if filesystem.isfile(path)]
            base = _stem(PurePosixPath(root)).as_posix()
        else:
            locations, base = filesystem.find(root), root
    except ImportError as error:
        raise UserError(
            f"data.corpus = {url!r}: this kind of URL needs a package that is not installed: {error}"
        ) from None
    except Exception as error:  # each kind of file system raises its own
        raise UserError(f"data.corpus = {url!r}: cannot be listed: {type(error).__name__}: {error}; {WORKS}") from None
    if not locations:
        raise UserError(f"data.corpus = {url!r}: nothing is there; {WORKS}")
    base = base.rstrip("/") + "/"
    sources = [Source(str(location).removeprefix(base), str(location), filesystem) for location in sorted(locations)]
    visible = [source for source in sources if not _is_hidden(source.path)]
    return CorpusFiles(visible, +Counter({"hidden": len(sources) - len(visible)}))
