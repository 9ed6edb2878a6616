"""A step of the installation that fails is named, with its cause and what to do, whatever Python runs it."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import install
from tools.check_wheel import ROOT

OUTPUTS = {
    "the disk is full": "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
    "no package index answered": (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(Failed to establish a new connection:"
        " [Errno 111] Connection refused')': /simple/setuptools/\n"
        "ERROR: Could not find a version that satisfies the requirement setuptools>=77 (from versions: none)\n"
        "ERROR: No matching distribution found for setuptools>=77\n"
    ),
    "a package has no wheel for this Python and this machine, and could not be built": (
        "  error: command 'gcc' failed: No such file or directory\n  ERROR: Failed building wheel for xxhash\n"
    ),
    "a package is not to be had for this Python and this machine": (
        "ERROR: Could not find a version that satisfies the requirement torch>=2.11 (from versions: none)\n"
        "ERROR: No matching distribution found for torch>=2.11\n"
    ),
    "this Python came without venv or pip": (
        "The virtual environment was not created successfully because ensurepip is not available.\n"
    ),
    "a library of the system is missing": "ImportError: libgomp.so.1: cannot open shared object file: No such file\n",
    "a folder cannot be written": "Error: [Errno 13] Permission denied: '/usr/venv'\n",
}
"""Output of pip, venv and the first import, by the cause that must be named."""


def stand_in(folder: Path, script: str) -> Path:
    """An environment whose `python` is a script of the shell: `-c 'import pip...'` tells a version that fourfold takes."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *"import pip"*) echo 3 11 7; exit 0;; esac\n{script}\n')
    python.chmod(0o755)
    return folder


@pytest.mark.parametrize("cause", OUTPUTS)
def test_a_failed_step_is_named_with_its_cause(cause: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "printed").write_text(OUTPUTS[cause])
    venv = stand_in(tmp_path / "venv", f"cat {tmp_path / 'printed'} >&2; exit 1")
    assert install.main([str(venv), "train", "explore"]) == 1
    printed = capfd.readouterr().err
    assert f"failed at step 1 of 2, torch and the packages for training and the page: {cause}" in printed
    assert "what works: " in printed.splitlines()[-1]
    assert "{" not in printed
    assert len(printed.splitlines()) == 3, "the last line of the output, the cause, what works"
    if "make " in printed.splitlines()[-1]:
        assert "explore" in printed.splitlines()[-1], "the command to repeat is the one that was given"


def test_an_unknown_failure_shows_its_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    venv = stand_in(tmp_path / "venv", "echo something else; exit 3")
    assert install.main([str(venv), "docs"]) == 1
    printed = capfd.readouterr().err
    assert "something else" in printed
    assert "then make docs again" in printed


def test_steps_that_succeed_are_told_and_bytecode_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    venv = stand_in(tmp_path / "venv", f'echo "$PYTHONDONTWRITEBYTECODE|$*" >> {tmp_path / "calls"}')
    assert install.main([str(venv), "train"]) == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.partition("|")[0] for call in calls] == ["", ""]
    assert "-c constraints.txt --no-compile -e .[train,explore]" in calls[0]
    assert "installing 2/2" in capfd.readouterr().out


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 15, 0), (2, 7, 18)])
def test_another_python_is_refused_with_one_that_is_there(
    version: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python3.12").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "python3.11").write_text("#!/bin/sh\nexit 127\n")  # a shim of a version that is not installed
    for name in ("python3.11", "python3.12"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SystemExit, match=r"needs Python 3.11 to 3.14; it is Python .*; what works: make PYTHON=python3.12 train"
    ):
        install.check_version(version, "it", "train")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="what works: install one"):
        install.check_version(version, "it", "train")


def test_an_old_python_can_read_the_script_and_is_told() -> None:
    text = Path(install.__file__).read_text()
    ast.parse(text, feature_version=(3, 6))
    old = next((path for minor in range(6, 11) if (path := shutil.which(f"python3.{minor}"))), None)
    if old is None or subprocess.run([old, "-c", ""], capture_output=True).returncode:
        return
    done = subprocess.run([old, install.__file__, "nowhere", "train"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("fourfold needs Python 3.11 to 3.14")
    assert len(done.stderr.splitlines()) == 1


def test_make_says_that_a_python_is_not_there() -> None:
    done = subprocess.run(
        ["make", "VENV=/nowhere/venv", "PYTHON=python-of-nowhere", "train"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "python-of-nowhere: there is no such Python; what works" in done.stderr


def test_the_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (least, below) = (install.OLDEST, (install.NEWEST[0], install.NEWEST[1] + 1))
    assert project["requires-python"] == ">={}.{},<{}.{}".format(*least, *below)
    minors = [f"{least[0]}.{minor}" for minor in range(least[1], below[1])]
    kept = [
        c.rpartition(" ")[2] for c in project["classifiers"] if c.startswith("Programming Language :: Python :: 3.")
    ]
    assert kept == minors
    matrix = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert f'python: ["{minors[0]}", "{minors[-1]}"]' in matrix
    for page in ("README.md", "CONTRIBUTING.md", "docs/start.md"):
        assert f"Python {minors[0]} to {minors[-1]}" in (ROOT / page).read_text(encoding="utf-8"), page


def test_extras_that_are_installed_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for kind in ("train", "test", "page", "docs", "release", "benchmark", "exports"):
        for _, words in install.steps_of(kind):
            named = [word[2:-1].split(",") for word in words if word.startswith(".[")]
            assert {name for names in named for name in names} <= {*extras}


TRITON_OF_TORCH = {"2.11.0": "3.6.0", "2.13.0": "3.7.1"}
"""The triton that each torch for CUDA asks for, by `==`: another one replaces its own, and torch's compiler with it."""


@pytest.mark.parametrize(("torch", "triton"), TRITON_OF_TORCH.items())
def test_no_extra_replaces_the_triton_of_a_torch_that_is_supported(torch: str, triton: str) -> None:
    """Nor a torch that is there already: a person chose it for the driver."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = [Requirement(each) for extra in project["optional-dependencies"].values() for each in extra]
    for name, version in (("torch", torch), ("triton", triton)):
        found = [each for each in stated if each.name == name]
        assert found
        for each in found:
            assert each.specifier.contains(version), f"{each} does not take {name} {version}"
            assert not each.specifier.contains("2.10.0" if name == "torch" else "3.5.1"), f"{each} has no lower bound"
            assert not each.specifier.contains("9.0.0"), f"{each} has no upper bound"


def test_the_versions_that_are_tested_are_a_pair() -> None:
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line
    )
    assert TRITON_OF_TORCH[pinned["torch"]] == pinned["triton"]


def test_half_an_environment_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to(tmp_path / "gone")
    ran: list[list[str]] = []

    def run(command: list[str]) -> tuple[int, str]:
        ran.append(command)
        return (1, "") if "import pip" in command[-1] else (0, "")

    monkeypatch.setattr(install, "run", run)
    assert install.main([str(venv), "train"]) == 0
    assert ran[1] == [sys.executable, "-m", "venv", "--clear", str(venv)]
    assert os.fspath(venv / "bin/python") == ran[2][0]
