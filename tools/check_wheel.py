"""The wheel and the source distribution: built, checked, and the wheel tried in fresh environments that have no torch, one for each
version of Python that fourfold takes and this machine has.

    python -m tools.check_wheel [FOLDER]      FOLDER: where both are left, dist by default

pip may need to download the dependencies. PIP_CONSTRAINT holds them to constraints.txt.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tools.install import NEWEST, OLDEST

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDER = "GIT-ADDRESS"
"""The project's own address, in the README of a version that is not released yet."""
_TOP = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml")
_BACKEND = ("__init__.py", "build_page.py")
_PAGE, _PAGE_SOURCE = "fourfold/explore/dist/", "fourfold/explore/page/"
_BUILT = tuple(
    _PAGE + name for name in ("index.html", "mark.svg", "glossary.txt", "report.js", "report.css", "assets/")
)
_GLOSSARY = "docs/glossary.md"
_DATA = (".toml", ".css", ".typed")
_REQUEST = "--model llama3-8b --cluster dgx-h100:16 --sequence-length 8192 --batch-tokens 1M --keep 1"
_TRIED = (
    "--help",
    "--version",
    f"plan {_REQUEST}",
    "show preset:mixtral-8x22b-256 --verify",
    "simulate preset:llama3-70b --cluster dgx-h100:64 --json",
)


def package_data(source: Path) -> set[str]:
    """Files below `source` that the package needs beside its modules, as names inside a wheel; the built page is no source."""
    files = (p for p in source.rglob("*") if p.is_file() and p.suffix in _DATA)
    names = {p.relative_to(source.parent).as_posix() for p in files}
    return {name for name in names if not name.startswith((_PAGE, _PAGE_SOURCE))}


def wheel_faults(wheel: Path, source: Path) -> list[str]:
    """Names what the wheel lacks, and what it should not have."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    modules = {p.relative_to(source.parent).as_posix() for p in source.rglob("*.py") if "node_modules" not in p.parts}
    faults = [f"{wheel.name} lacks {name}" for name in sorted((modules | package_data(source)) - inside)]
    faults += [
        f"{wheel.name} has {name}"
        for name in sorted(inside)
        if name.startswith(("tests/", "tools/", "benchmarks/", _PAGE_SOURCE))
    ]
    faults += [
        f"{wheel.name} lacks {name} of the built page" for name in _BUILT if not any(n.startswith(name) for n in inside)
    ]
    if not any(name.endswith("licenses/LICENSE") for name in inside):
        faults.append(f"{wheel.name} lacks the licence")
    return faults


def release_faults(readme: str, changelog: str, version: str) -> list[str]:
    """Faults of a release: a README that leaves the project's address open. A version is released once the changelog dates it."""
    heading = next((line for line in changelog.splitlines() if line.startswith(f"## [{version}]")), None)
    if heading is None:
        return [f"CHANGELOG.md has no heading ## [{version}]"]
    if heading.endswith("unreleased") or PLACEHOLDER not in readme:
        return []
    return [
        f"README.md says {PLACEHOLDER} where {heading.removeprefix('## ')} is released; write the project's address there"
    ]


def _run(*command: str | Path, quiet: bool = True, **more: object) -> None:
    print("+", " ".join(map(str, command)), flush=True)
    done = subprocess.run(command, text=True, capture_output=quiet, **more)  # type: ignore[call-overload]
    if done.returncode:
        print(done.stdout or "", done.stderr or "", sep="")
        raise SystemExit(f"{command[0]} ended with exit code {done.returncode}")


def _build(folder: Path) -> tuple[Path, Path]:
    """From a copy of the tracked parts: an old `build/` or egg-info would put files into the wheel that the tree no longer has."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "fourfold"
        made = shutil.ignore_patterns("*.egg-info", "__pycache__", "node_modules")
        shutil.copytree(ROOT / "src", copy / "src", ignore=made)
        for name in _TOP:
            shutil.copy2(ROOT / name, copy / name)
        for name in ("tools", "docs"):
            (copy / name).mkdir()
        shutil.copy2(ROOT / _GLOSSARY, copy / _GLOSSARY)
        for name in _BACKEND:
            shutil.copy2(ROOT / "tools" / name, copy / "tools" / name)
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder.resolve(), copy)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def interpreters(folders: Iterable[Path] | None = None) -> dict[str, Path | None]:
    """The Python of each version that fourfold takes: this one, one on PATH, or pyenv's; None where there is none that starts."""
    places = [Path(folder) for folder in os.get_exec_path()]
    places += sorted((Path.home() / ".pyenv/versions").glob("*/bin"))
    found: dict[str, Path | None] = {}
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        paths = [folder / f"python3.{minor}" for folder in (places if folders is None else folders)]
        if sys.version_info[1] == minor:
            paths.insert(0, Path(sys.executable))
        works = (
            path
            for path in paths
            if path.is_file() and not subprocess.run([path, "-c", ""], capture_output=True).returncode
        )
        found[f"3.{minor}"] = next(works, None)
    return found


def _try(wheel: Path, interpreter: Path) -> None:
    """Installs the wheel into an environment of its own and runs the planner's half there, away from the source tree."""
    with tempfile.TemporaryDirectory() as scratch:
        _run(interpreter, "-m", "venv", scratch)
        python, command = Path(scratch) / "bin" / "python", Path(scratch) / "bin" / "fourfold"
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        clean.setdefault("PIP_CONSTRAINT", str(ROOT / "constraints.txt"))
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel.resolve(), env=clean)
        _run(
            python,
            "-c",
            "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)",
            cwd=scratch,
        )
        for words in _TRIED:
            _run(command, *words.split(), cwd=scratch, env=clean)


def main(arguments: list[str]) -> int:
    """Exit code: 0 where both can be released."""
    wheel, source = _build(Path(arguments[0] if arguments else "dist"))
    _run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    faults = wheel_faults(wheel, ROOT / "src" / "fourfold")
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CHANGELOG.md")]
    faults += release_faults(*texts, wheel.name.split("-")[1])
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    faults += [f"{source.name} lacks {name}" for name in _TOP if name not in names]
    if faults:
        print("\n".join(faults))
        return 1
    found = interpreters()
    for interpreter in filter(None, found.values()):
        _try(wheel, interpreter)
    print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.2f} MB, and {source.name}: complete, and work without torch")
    tried = ", ".join(version for version, path in found.items() if path is not None)
    absent = ", ".join(version for version, path in found.items() if path is None)
    print(
        f"tried under Python {tried}; " + (f"not on this machine, so not tried: {absent}" if absent else "that is all")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
