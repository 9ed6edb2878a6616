"""The life of a run as the command sees it, with ranks that only pretend: begin, end, fail, go on."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from fourfold.api.launching import train_with
from fourfold.config import RunFailure, UserError
from fourfold.data.prepared import open_prepared
from fourfold.launch.run_folder import RunFolder
from fourfold.report.ending import Command

pytest.importorskip("torch")
FAKE = Path(__file__).parents[1] / "launch" / "fake_worker.py"
OUT = Path("runs/run")


def train(mode: str, *overrides: str, ranks: int | None = 2, out: Path | None = None, change: bool = False) -> int:
    command = Command(Path("run.toml"), overrides, ranks, out)
    return train_with(command, worker=(sys.executable, str(FAKE), mode), grace_seconds=5.0, change=change)


def test_a_run_writes_a_complete_folder_and_ends_with_what_it_learned(here, capsys) -> None:
    assert train("finish") == 0
    text = capsys.readouterr().out
    config = RunFolder(OUT).require_config()
    assert config.layout.dp_shard == 2
    assert config.model.vocab_size == 320
    assert open_prepared(json.loads((OUT / "data.json").read_text())["prepared"]).vocab_size == 257
    for text in (
        "2.2500 nats per token",
        "unigram loss",
        "def f(x):",
        "runs/run",
        "fourfold sample",
        "layout.zero=1",
    ):
        assert text in text


def test_a_finished_run_says_so_and_goes_on_when_it_is_given_more_steps(here, capsys) -> None:
    train("finish")
    capsys.readouterr()
    assert train("fail:0:must not be started") == 0
    assert "finished at step 3" in (text := capsys.readouterr().out)
    assert "batch.steps=6" in text
    assert train("finish", "batch.steps=6") == 0
    assert RunFolder(OUT).require_config().batch.steps == 6


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("optimizer.lr=0.5", "optimizer.lr = 0.5"),
        ("data.tokenizer=bpe:300", "data.tokenizer"),
        ("run.seed=3", "run.seed"),
    ],
)
def test_another_run_is_not_mixed_into_a_folder_that_holds_one(here, override, named) -> None:
    train("finish")
    with pytest.raises(UserError, match=named) as caught:
        train("finish", override)
    assert "--out runs/run-2" in str(caught.value)
    assert train("finish", override, out=Path("runs/other")) == 0


def test_other_ranks_go_on_with_the_run_and_say_so(here, capsys) -> None:
    train("finish")
    capsys.readouterr()
    assert train("finish", "batch.steps=6", "layout.zero=3", "checkpoint.directory=disk", ranks=4) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "goes on at step 3 with" in line]
    assert len(shown) == 1
    assert "layout.dp_shard = 4 (was 2), layout.zero = 3 (was 0)" in shown[0]
    assert json.loads((OUT / "data.json").read_text())["former_checkpoints"] == [str(here / OUT / "checkpoints")]
    assert RunFolder(OUT).require_config().layout.dp_shard == 4


def test_a_folder_of_checkpoints_is_one_runs_and_another_is_refused_before_anything_is_written(here) -> None:
    assert train("finish", "checkpoint.directory=saved") == 0
    (here / "saved" / "step-000003").mkdir()
    (here / "saved" / "step-000003" / "manifest.json").write_text("{}")
    before = sorted(here.rglob("*"))
    for overrides in (("run.seed=7",), ("batch.steps=9", "optimizer.lr=0.5")):
        with pytest.raises(UserError, match=r"checkpoint.directory = .*/saved: belongs to the run in .*/runs/run"):
            train("finish", "checkpoint.directory=saved", *overrides, out=Path("runs/b"))
    with pytest.raises(UserError, match="belongs to the run in"):
        train("finish", "checkpoint.directory=runs/run/checkpoints", out=Path("runs/b"))
    assert sorted(here.rglob("*")) == before
    assert train("finish", "checkpoint.directory=saved", "batch.steps=6") == 0


def test_a_copy_of_a_run_is_refused_before_anything_is_written(here) -> None:
    train("finish")
    shutil.copytree(OUT, "runs/copy")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"--out runs/copy: is a copy of the run in .*/runs/run"):
        train("finish", "batch.steps=6", out=Path("runs/copy"))
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file() and path.name != ".lock"} == {
        path: data for path, data in before.items() if path.name != ".lock"
    }


def test_a_run_file_that_was_edited_in_the_folder_changes_no_run_by_itself(here) -> None:
    train("finish")
    file = RunFolder(OUT).run_file
    file.write_text(file.read_text().replace("lr = 0.0003", "lr = 0.03"))
    edited = Command(file, ("batch.steps=6",), 2, OUT)
    with pytest.raises(UserError, match=r"optimizer.lr = 0.03 here, 0.0003 there; add --change"):
        train_with(edited, worker=(sys.executable, str(FAKE), "finish"), grace_seconds=5.0)


def test_another_learning_rate_is_asked_for(here, capsys) -> None:
    train("finish")
    with pytest.raises(UserError, match="--change"):
        train("finish", "batch.steps=6", "optimizer.lr=0.5")
    assert train("finish", "batch.steps=6", "optimizer.lr=0.5", change=True) == 0
    events = [json.loads(line) for line in (OUT / "events.jsonl").read_text().splitlines()]
    assert [event["keys"]["optimizer.lr"] for event in events if event["event"] == "change"] == [[0.0003, 0.5]]


def test_a_corpus_that_changed_since_is_noticed_where_the_old_tokens_are_gone(here) -> None:
    train("finish", "data.directory=cache")
    (here / "texts" / "3.txt").write_text("One more text.\n" * 40)
    assert train("finish", "data.directory=cache", "batch.steps=4") == 0  # the tokens it began with are still there
    for path in (here / "cache").glob("*/prepared.json"):
        path.unlink()
    (here / "runs/run/data.json").write_text(json.dumps({"prepared": "gone", "corpus_id": "0" * 64}))
    with pytest.raises(UserError, match="has changed since"):
        train("finish", "data.directory=cache", "batch.steps=5")


def test_a_rank_that_fails_fails_the_run_and_names_the_way_on(here) -> None:
    with pytest.raises(RunFailure) as caught:
        train("fail:1:the loss exploded")
    message = str(caught.value)
    assert message.startswith("the loss exploded\n")
    assert "fourfold train run.toml --ranks 2" in message
    assert "runs/run/logs" in message


def test_a_run_that_failed_before_its_first_step_may_be_corrected(here) -> None:
    with pytest.raises(UserError):
        train("mistake:0:that cannot work")
    assert train("finish", "optimizer.lr=0.5") == 0
    assert RunFolder(OUT).require_config().optimizer.lr == 0.5


def test_too_little_memory_is_reported_before_the_ranks_start(here, capsys, monkeypatch) -> None:
    monkeypatch.setattr("fourfold.launch.ready.memory_bytes", lambda: 1000)
    train("finish")
    assert "warning: 2 ranks with a predicted peak of" in capsys.readouterr().out


def test_an_unsound_program_is_refused(here, monkeypatch) -> None:
    from fourfold.program import Fault

    fault = Fault(0, 3, None, "reads grad/b1 before it is written", "write it first")
    monkeypatch.setattr("fourfold.launch.resolve.ResolvedRun.faults", lambda self: [fault])
    with pytest.raises(RunFailure, match="reads grad/b1 before it is written"):
        train("finish")
    assert not (here / "runs").exists()


def test_under_another_launcher_ranks_must_agree(here, monkeypatch) -> None:
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="2 ranks were started"):
        train("finish", ranks=3)
    with pytest.raises(RunFailure, match="rank 1 waited"):
        train("finish", "run.timeout_seconds=0.3", ranks=None)
