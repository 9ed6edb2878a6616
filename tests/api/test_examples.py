"""The scripts of `examples/api` run and print what they promise; so does the Python of the pages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fourfold.report.page_file import is_built

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "api"
PROMISED = {
    "plan_and_pick.py": ("layouts of 32 blocks on 16 devices", "picked: ", "1T tokens: "),
    "sweep_layouts.py": ("does not fit", "cannot be: ", "% "),
    "break_a_program.py": ("verified: ", "it is refused:\n  rank 0, #", "put `wait G embed` before it"),
}


@pytest.mark.docs
@pytest.mark.parametrize("name", PROMISED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, FOLDER / name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in PROMISED[name]:
        assert text in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_script_is_run() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == set(PROMISED)


@pytest.mark.docs
@pytest.mark.parametrize("page", ["docs/api.md", "README.md"])
def test_the_python_of_a_page_runs(page: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    if page == "docs/api.md":
        printed = capsys.readouterr().out
        assert "dp 16" in printed
        assert ("runs/first/report.html" if is_built() else "the page is not built") in printed
        assert re.search(r"^rank 0, #\d+ `", printed, re.MULTILINE)
