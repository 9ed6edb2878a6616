"""The check of the wheel sees a module or a data file that is not inside."""

import sys
import tomllib
import zipfile
from pathlib import Path

from tools.check_wheel import PLACEHOLDER, ROOT, interpreters, package_data, release_faults, wheel_faults

SOURCE = ROOT / "src" / "fourfold"


def wheel(path: Path, without: str = "", beside: tuple[str, ...] = ()) -> Path:
    names = [p.relative_to(SOURCE.parent).as_posix() for p in SOURCE.rglob("*.py") if "node_modules" not in p.parts]
    names += [
        f"fourfold/explore/dist/{name}"
        for name in ("index.html", "mark.svg", "glossary.txt", "report.js", "report.css", "assets/index.js")
    ]
    names += [*package_data(SOURCE), *beside, "fourfold-0.dist-info/licenses/LICENSE"]
    with zipfile.ZipFile(path / "a.whl", "w") as archive:
        for name in names:
            if not without or without not in name:
                archive.writestr(name, "")
    return path / "a.whl"


def test_a_wheel_with_everything_has_no_fault(tmp_path: Path) -> None:
    assert wheel_faults(wheel(tmp_path), SOURCE) == []


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert "a.whl lacks fourfold/cost/fitted.toml" in wheel_faults(wheel(tmp_path, "fitted.toml"), SOURCE)
    assert wheel_faults(wheel(tmp_path, "program/verify.py"), SOURCE) == ["a.whl lacks fourfold/program/verify.py"]
    assert wheel_faults(wheel(tmp_path, "LICENSE"), SOURCE) == ["a.whl lacks the licence"]
    missing = wheel_faults(wheel(tmp_path, "dist/index.html"), SOURCE)
    assert missing == ["a.whl lacks fourfold/explore/dist/index.html of the built page"]
    missing = wheel_faults(wheel(tmp_path, "glossary.txt"), SOURCE)
    assert missing == ["a.whl lacks fourfold/explore/dist/glossary.txt of the built page"]


def test_what_does_not_belong_is_named(tmp_path: Path) -> None:
    assert wheel_faults(wheel(tmp_path, beside=("tests/a.py",)), SOURCE) == ["a.whl has tests/a.py"]


def test_the_packages_metadata_covers_all_data() -> None:
    """A new folder of data must be named in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["fourfold"]
    assert {"explore/dist/*", "explore/dist/assets/*"} <= {*patterns}
    covered = {f"fourfold/{p.relative_to(SOURCE).as_posix()}" for pattern in patterns for p in SOURCE.glob(pattern)}
    assert package_data(SOURCE) <= covered


def test_every_version_is_looked_for_and_one_that_does_not_start_is_none(tmp_path: Path) -> None:
    for version, code in (("3.11", 127), ("3.12", 0), ("3.13", 127), ("3.14", 0), ("3.15", 0)):
        (tmp_path / f"python{version}").write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / f"python{version}").chmod(0o755)
    expected = {"3.11": None, "3.12": tmp_path / "python3.12", "3.13": None, "3.14": tmp_path / "python3.14"}
    expected[f"3.{sys.version_info[1]}"] = Path(sys.executable)
    assert interpreters([tmp_path]) == expected


def test_a_release_states_where_it_comes_from() -> None:
    readme, changelog = ((ROOT / name).read_text() for name in ("README.md", "CHANGELOG.md"))
    assert release_faults(readme, changelog, "0.1.0") == []
    open_ = f"pip install git+{PLACEHOLDER}"
    assert release_faults(open_, "## [0.1.0] - unreleased", "0.1.0") == []
    assert "README.md says GIT-ADDRESS" in release_faults(open_, "## [0.1.0] - 2027-01-01", "0.1.0")[0]
    assert release_faults("pip install git+https://example.org/f.git", "## [0.1.0] - 2027-01-01", "0.1.0") == []
    assert release_faults(open_, "## [0.1.0] - unreleased", "0.2.0") == ["CHANGELOG.md has no heading ## [0.2.0]"]
