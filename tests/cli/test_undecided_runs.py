"""A large run that leaves to defaults what decides it is refused, before anything is written, by each command that submits it."""

from pathlib import Path

import pytest

from fourfold.config import dump_run
from tests.launch.test_undecided import run


def test_train_and_job_refuse_before_they_write(fourfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(dump_run(run("smollm2-135m"), brief=True))
    before = {path.name for path in tmp_path.iterdir()}
    for words in (
        ("train", "run.toml", "--ranks", "1"),
        ("job", "run.toml", "--as", "slurm", "--cluster", "dgx-h100:8", "--out", "j"),
    ):
        result = fourfold(*words)
        assert result.code == 2
        assert result.err.startswith(
            "error: a run of 0.135 G parameters leaves to defaults what decides it:\n  data.corpus: "
        )
        assert "Traceback" not in result.err
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_planned_run_says_what_it_leaves_open_and_no_script_invents_it(fourfold, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("--model", "llama3-8b", "--cluster", "dgx-h100:8", "--sequence-length", "4096", "--batch-tokens", "1M")
    small = ("--tokens", "1G", "--budget", "1")
    planned = fourfold("plan", *asked, *small, "--out", "planned.toml")
    assert planned.code == 0
    line = "before it trains, state data.corpus, data.tokenizer, optimizer.lr, optimizer.warmup_steps"
    assert line in planned.out
    assert f"# {line}" in Path("planned.toml").read_text()
    for trainer in ("megatron", "torchtitan", "deepspeed", "bridge"):
        refused = fourfold("plan", *asked, *small, "--as", trainer)
        assert refused.code == 2
        assert "optimizer.lr: not stated" in refused.err
        assert "data.corpus" not in refused.err, "which the trainer's own options say"
    exported = fourfold("plan", *asked, *small, "--as", "megatron", "optimizer.lr=1.5e-4", "optimizer.warmup_steps=200")
    assert exported.code == 0, exported.err
    assert "--lr 0.00015" in exported.out
    assert "--lr-warmup-iters 200" in exported.out
