"""A clone that is changed under a run that trains from it: no rank is started again on the new code unseen."""

import os
import shutil
import signal
from pathlib import Path

import pytest

import fourfold
from tests.support.supervised import Supervised, left_by, write_run

STEPS = 20


@pytest.mark.rest
def test_ranks_are_not_started_again_by_other_code_until_that_is_allowed(tmp_path: Path, monkeypatch) -> None:
    """The run that goes on under it, where it computes as before, equals the undisturbed one, and says what it did."""
    package = tmp_path / "source" / "fourfold"
    shutil.copytree(
        Path(fourfold.__file__).parent, package, ignore=shutil.ignore_patterns("node_modules", "page", "__pycache__")
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    run_file = write_run(tmp_path, STEPS)
    with Supervised(run_file, tmp_path / "undisturbed") as run:
        assert run.finish() == 0, run.printed
        undisturbed = left_by(run.out)
    out = tmp_path / "run"
    with Supervised(run_file, out) as run:
        run.wait_until(lambda: run.events("save"))  # there is a checkpoint that other code would go on from
        with open(package / "report" / "units.py", "a") as file:
            file.write("\n# another version\n")
        os.kill(run.pids[1], signal.SIGKILL)
        assert run.finish() == 1, run.printed
        assert "the code of fourfold changed while this run went on" in run.printed
        assert len(run.events("failure")) == 2, "the kill, and the refusal of the ranks that were started again"
    with Supervised(run_file, out) as run:
        assert run.finish() == 2, run.printed
        assert "was saved by fourfold" in run.printed
        assert "--allow-other-code" in run.printed
    with Supervised(run_file, out, flags=["--allow-other-code"]) as run:
        assert run.finish() == 0, run.printed
        assert run.printed.count("under other code") == 1
        [change] = run.events("code")
        assert change["before"] != change["now"]
        assert left_by(out) == undisturbed
