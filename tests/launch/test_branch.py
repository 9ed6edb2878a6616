"""`train --from RUN@STEP`: the checkpoint that is meant, and a branch that is the run which it left."""

from pathlib import Path
from typing import Any

import pytest

import fourfold
from fourfold.config import UserError, parse_run
from fourfold.data.skipped import left_out_by
from fourfold.launch.branch import branch_point, with_branch
from fourfold.launch.run_folder import RunFolder
from tests.checkpoint.ranks import Run
from tests.train.test_training import RUN, corpus

__all__ = ["corpus"]
MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 99}
TABLE = {
    "model": MODEL,
    "batch": {"global_sequences": 8, "sequence_length": 16, "steps": 60},
    "stage": [
        {"name": "main", "until_steps": 20},
        {"name": "gone", "until_steps": 25},
        {"name": "long@8k", "until_steps": 40},
        {},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an @ in its name, copies, and four checkpoints."""
    path = tmp_path_factory.mktemp("runs") / "a@b"
    copies = path.parent / "copies"
    RunFolder(path).write(parse_run({**TABLE, "checkpoint": {"copy_to": str(copies)}}), {})
    for step in (20, 30, 40):
        Run().save(path / "checkpoints", step, keep=9)
    Run().save(copies, 10)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "checkpoints/step-000040"),
        ("@30", "checkpoints/step-000030"),
        ("@step-000020", "checkpoints/step-000020"),
        ("@main", "checkpoints/step-000020"),
        ("@long@8k", "checkpoints/step-000040"),
        ("@10", "../copies/step-000010"),
        ("/checkpoints", "checkpoints/step-000040"),
        ("/checkpoints@20", "checkpoints/step-000020"),
        ("/checkpoints/step-000030", "checkpoints/step-000030"),
    ],
)
def test_a_text_names_a_checkpoint(folder: Path, text: str, expected: str) -> None:
    assert branch_point(f"{folder}{text}")[0] == Path(f"{folder}/{expected}").resolve()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("@25", r"keeps no checkpoint of step 25; allowed: .*10, 20, 30, 40.*works: --from .*a@b@20"),
        ("@gone", r"no checkpoint of step 25 \(the end of gone\); .*\(10, 20, 30, 40"),
        ("@latest", r"'latest' is no step and no stage of .*a@b; .*main, gone, long@8k; what works: --from .*a@b@40"),
        ("-2", r"holds no checkpoint|is no run's folder"),
    ],
)
def test_a_step_that_is_not_kept_is_refused_with_those_that_are(folder: Path, text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        branch_point(f"{folder}{text}")


def test_a_branch_keeps_where_it_began_when_that_run_went_on_or_is_gone(folder: Path, tmp_path: Path) -> None:
    begun = str(folder / "checkpoints" / "step-000030")
    own = RunFolder(tmp_path / "branch")
    own.write(parse_run({**TABLE, "checkpoint": {"start_from": begun}}), {})
    for text in (f"{folder}", f"{folder}@30", "/gone/run@30", "/gone/run"):
        assert with_branch(parse_run(TABLE), own, text).checkpoint.start_from == begun, text
    assert with_branch(parse_run(TABLE), own, f"{folder}@40").checkpoint.start_from != begun
    with pytest.raises(UserError, match="what works"):
        with_branch(parse_run(TABLE), own, "/gone/run@40")
    with pytest.raises(UserError, match="both stated"):
        with_branch(parse_run({**TABLE, "checkpoint": {"start_from": begun}}), own, f"{folder}@30")


def run(corpus: Path, folder: Path, **batch: Any) -> dict[str, Any]:
    return {
        "model": RUN["model"],
        "data": {"corpus": str(corpus), "tokenizer": "bytes", "directory": str(folder / "data")},
        "batch": {"global_sequences": 4, "sequence_length": 16, "steps": 9, **batch},
        "precision": {"compute": "fp64"},
        "optimizer": {"lr": 1e-2, "schedule": "constant"},
        "checkpoint": {"every_steps": 2, "keep": 9},
        "run": {"device": "cpu", "sample_tokens": 0, "threads_per_rank": 1, "evaluate_sequences": 4},
    }


def test_a_branch_leaves_out_what_its_run_did_and_equals_it(tmp_path: Path, corpus: Path) -> None:
    """Data that the run left out, of which the branch's file does not tell."""
    table, out = run(corpus, tmp_path), tmp_path / "main"
    first = fourfold.train(
        {**table, "data": {**table["data"], "skip_sequences": [{"step": 3, "sequences": 5}]}},
        ranks=1,
        out=out,
        quiet=True,
    )
    branch = fourfold.train(table, ranks=1, out=tmp_path / "branch", quiet=True, from_=f"{out}@6")
    assert [(skip.step, skip.sequences) for skip in left_out_by(tmp_path / "branch").skipped] == [(3, 5)]
    for key in ("step", "loss", "grad_norm", "tokens", "lr"):
        assert [row[key] for row in branch.metrics] == [row[key] for row in first.metrics[6:]], key
    before = fourfold.train(table, ranks=1, out=tmp_path / "early", quiet=True, from_=f"{out}@2")
    assert left_out_by(tmp_path / "early").skipped == []
    assert [row["loss"] for row in before.metrics][:1] == [first.metrics[2]["loss"]]
    assert before.metrics[2]["loss"] != first.metrics[4]["loss"]
    [told] = [event for event in branch.events if event["event"] == "branch"]
    assert told["step"] == 6
    assert told["message"].endswith(f"at {out}/checkpoints/step-000006")
