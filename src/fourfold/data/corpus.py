"""Resolves `data.corpus`: the files behind "stdlib", a folder, a file, a glob or a URL, or a Megatron pair."""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath, PurePosixPath

import fsspec

from fourfold.config import UserError
from fourfold.config.beside import where_looked
from fourfold.data.source import Source
from fourfold.data.stdlib import is_generated_table, stdlib_files, stdlib_root

WORKS = 'what works: corpus = "stdlib", a folder, a file, a glob such as "texts/*.jsonl", or a Megatron .bin/.idx pair'


def list_sources(name: str, exclude: Path) -> tuple[list[Source], Counter[str]]:
    """The files of a text corpus, sorted by their path below its root, and how many were skipped, by reason.

    Hidden files and folders (a name that begins with a dot) are skipped, except where they are named outright, and so
    is what is no regular file. Nothing below the folder `exclude` belongs to a corpus: the cache may lie inside it.
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
        return [Source(root.name, str(root.absolute()), local)], Counter()
    if root.is_dir():
        paths = _walk(root)
    elif matches := [Path(match) for match in glob.glob(str(root), recursive=True)]:
        paths = (path for match in matches for path in (_walk(match) if match.is_dir() else [match]))
        base = _stem(root)
    else:
        raise UserError(f"data.corpus = {name!r}: there is no such folder, file or match{where_looked(name)}; {WORKS}")
    return _collect((path.relative_to(base).as_posix(), path) for path in _outside(exclude, paths))


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
    if has_suffix and any(halves):
        missing = prefix + (".idx" if halves[0] else ".bin")
        raise UserError(f"data.corpus = {name!r}: the other half of the Megatron pair is missing: {missing}")
    return None


def _list_stdlib() -> tuple[list[Source], Counter[str]]:
    root, local = stdlib_root(), fsspec.filesystem("file")
    sources, skipped = [], Counter[str]()
    for path in stdlib_files():
        # A file that is not UTF-8 is left for the scan to refuse: here it only has to be no table.
        if is_generated_table(path.read_text(encoding="utf-8", errors="replace")):
            skipped["generated table"] += 1
        else:
            sources.append(Source(path.relative_to(root).as_posix(), str(path), local))
    return sorted(sources, key=lambda source: source.path), skipped


def _collect(files: Iterable[tuple[str, Path]]) -> tuple[list[Source], Counter[str]]:
    local = fsspec.filesystem("file")
    sources, skipped = [], Counter[str]()
    for relative, path in sorted(files):
        if _is_hidden(relative):
            skipped["hidden"] += 1
        elif not path.is_file():
            skipped["not a regular file"] += 1
        else:
            sources.append(Source(relative, str(path.absolute()), local))
    return sources, skipped


def _walk(root: Path) -> Iterator[Path]:
    """Files below a folder. Links to folders are not followed: they can form a loop."""

    def refuse(error: OSError) -> None:
        raise UserError(f"data.corpus: {error.filename}: this folder cannot be read: {error.strerror}")

    for folder, _, names in os.walk(root, onerror=refuse):
        yield from (Path(folder, name) for name in names)


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


def _list_remote(url: str) -> tuple[list[Source], Counter[str]]:
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
    return visible, +Counter({"hidden": len(sources) - len(visible)})
