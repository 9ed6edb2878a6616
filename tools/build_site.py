"""Builds the page of `fourfold explore` as a static site, on which the planner runs in the browser.

python -m tools.build_site [FOLDER] [--address https://HOST/PATH/]    builds into FOLDER, by default docs/_build/page

The site is the built page, Python compiled to WebAssembly (npm's `pyodide`, pinned by package-lock.json), the wheels of
`tools/site_wheels.txt` (pinned by their digests) and this package as it is; and the answers to what each page asks first
(`first_requests.txt`). Any server of files serves it, without special headers; nothing is loaded from elsewhere.
`--address`: where it will be, for the picture that other sites show of it.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from fourfold.explore.documents import encoded
from tools.build_page import DIST, GLOSSARY, MODULES, PAGE, ROOT, build_page, install_packages, node_command

WHEELS = ROOT / "tools/site_wheels.txt"
FIRST = ROOT / "src/fourfold/explore/browser/first_requests.txt"
"""By line: a request of the page as its text, `[name, body]`, that it makes before a person has changed anything."""
OUT = ROOT / "docs/_build/page"
PICTURE = ROOT / "docs/_static/explore-strategy.png"
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PYTHON, PLATFORM = "3.14", "pyemscripten_2026_0_wasm32"
"""The Python of that Pyodide, and the platform of its wheels (PEP 783)."""
ARCHIVE, ANSWERS = "packages.zip", "answers.json"
_LEFT_OUT = (
    "explore/page",
    "explore/dist",
    "train",
    "runtime",
    "supervise",
    "rehearse",
    "kernels",
    "calibrate",
    "checkpoint",
)
"""Parts of the package that no document takes."""
_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
_TITLE = "fourfold: plan the pretraining of a large language model"
_WORDS = "Memory, time, network and money of one training step on any number of devices, computed in your browser."


def build_site(folder: Path, address: str | None = None) -> None:
    """Raises `SystemExit` with what to do where a step fails."""
    build_page()
    install_packages()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DIST, folder, ignore=shutil.ignore_patterns("report.*", "sources.sha256", "glossary.txt"))
    with tempfile.TemporaryDirectory() as scratch:
        engine = Path(scratch) / "engine"
        _make_engine(engine, Path(scratch))
        name = f"engine-{_digest(engine)[:12]}"
        shutil.copytree(engine, folder / name)
    shutil.copyfile(PICTURE, folder / "picture.png")
    index = folder / "index.html"
    index.write_text(
        index.read_text(encoding="utf-8").replace("<title>", f"{_head(name, address)}<title>", 1), encoding="utf-8"
    )


def _head(engine: str, address: str | None) -> str:
    """Elements that say where the engine is, what the page may load, and how other sites show it."""
    lines = [
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}" />',
        f'<meta name="fourfold-engine" content="./{engine}/" />',
        f'<meta name="description" content="{_WORDS}" />',
    ]
    shown = {"title": _TITLE, "description": _WORDS, "type": "website", "image": f"{address or './'}picture.png"}
    shown |= {"url": address} if address else {}
    lines += [f'<meta property="og:{key}" content="{escape(value)}" />' for key, value in shown.items()]
    return "\n    ".join([*lines, '<meta name="twitter:card" content="summary_large_image" />', ""])


def _make_engine(folder: Path, scratch: Path) -> None:
    folder.mkdir()
    for name in PYODIDE:
        shutil.copyfile(MODULES / "pyodide" / name, folder / name)
    plain = scratch / "plain.zip"
    _write_archive(plain, _fetched_wheels(scratch / "wheels"))
    command = [*node_command(), str(PAGE / "compile_packages.mjs"), f"{folder}/", str(plain), str(folder / ARCHIVE)]
    if subprocess.run(command).returncode:
        raise SystemExit("the package is not compiled for the browser: see above")
    index: dict[str, str] = {}
    (folder / "answers").mkdir()
    for number, line in enumerate(FIRST.read_text(encoding="utf-8").splitlines()):
        name, body = json.loads(line)
        index[line] = f"answers/{number}-{name}.json"
        (folder / index[line]).write_bytes(encoded(name, body, lambda *_: None))
    (folder / ANSWERS).write_text(json.dumps(index, indent=0, ensure_ascii=False), encoding="utf-8")


def _fetched_wheels(folder: Path) -> list[Path]:
    """The wheels, from the package index or from pip's own store, each with the digest that is pinned."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps",
        "--only-binary=:all:", "--platform", PLATFORM, "--platform", "any", "--python-version", PYTHON, "--implementation", "cp",
        "--abi", f"cp{PYTHON.replace('.', '')}", "--abi", "none", "--dest", str(folder), "--requirement", str(WHEELS),
    ]  # fmt: skip
    if subprocess.run(command).returncode:
        raise SystemExit(f"the wheels of {WHEELS.relative_to(ROOT)} cannot be had; what works: a network that has PyPI")
    return sorted(folder.glob("*.whl"))


def _write_archive(path: Path, wheels: list[Path]) -> None:
    """One archive of all that Python imports: wheels as they are, the package as it is."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for wheel in wheels:
            with ZipFile(wheel) as packed:
                for name in sorted(packed.namelist()):
                    if not name.endswith(("/", ".pyi")) and ".dist-info/" not in name:
                        archive.writestr(ZipInfo(name), packed.read(name), ZIP_DEFLATED)
        for file in _sources():
            archive.writestr(ZipInfo(file.relative_to(ROOT / "src").as_posix()), file.read_bytes(), ZIP_DEFLATED)
        archive.writestr(ZipInfo("fourfold/explore/dist/glossary.txt"), GLOSSARY.read_bytes(), ZIP_DEFLATED)


def _sources() -> Iterator[Path]:
    package = ROOT / "src/fourfold"
    left_out = [package / each for each in _LEFT_OUT]
    for file in sorted(package.rglob("*")):
        kept = file.suffix in (".py", ".toml", ".json") and not any(file.is_relative_to(each) for each in left_out)
        if kept and file.is_file():
            yield file


def _digest(folder: Path) -> str:
    """SHA-256 of all files and their names: another engine has another address, so that browsers may keep each."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(
            f"{file.relative_to(folder).as_posix()}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the page as a static site with the planner in the browser.")
    parser.add_argument("folder", nargs="?", type=Path, default=OUT)
    parser.add_argument("--address", help="where the site will be, for example https://example.org/fourfold/")
    arguments = parser.parse_args()
    build_site(arguments.folder, arguments.address)
    size = sum(path.stat().st_size for path in arguments.folder.rglob("*") if path.is_file())
    print(
        f"{arguments.folder}: {size / 1e6:.1f} MB; look at it with: python -m http.server --directory {arguments.folder}"
    )


if __name__ == "__main__":
    main()
