"""`fourfold train --rehearse`: a screen of what every pipeline rank would do, and nothing started."""

from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("torch")
from fourfold.launch.resolve import ResolvedRun
from fourfold.rehearse import training
from fourfold.rehearse.small import SmallRun


@pytest.fixture(autouse=True)
def went(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of trainings in small that would have begun."""
    began: list[int] = []

    def rehearsed(resolved: ResolvedRun) -> training.TrainingRehearsal:
        began.append(resolved.layout.world_size)
        return training.TrainingRehearsal(
            SmallRun(resolved, ("data.corpus",)), Counter(save=3, evaluate=2, sample=1), 7.2
        )

    monkeypatch.setattr("fourfold.api.rehearsal.rehearse_training", rehearsed)
    return began


def test_a_screen_and_no_folder(here: Path, fourfold, went: list[int]) -> None:
    result = fourfold("train", "run.toml", "--rehearse", "--ranks", "4", "layout.pp=2", "layout.microbatch_sequences=2")
    assert result.code == 0, result.err
    head, first, second = (line for line in result.out.splitlines() if line.startswith(("pipeline rank", "0 ", "1 ")))
    assert head.split()[-4:] == ["step", "peak", "predicted", "sends"]
    assert first.split()[0] == "0"
    assert second.split()[0] == "1"
    assert "1 x Tensor.tolist() (runtime/device.py" in result.out
    assert "host memory  nothing is pinned" in result.out
    assert "all of a training in small, 4 ranks (pp 2, dp_shard 2) in 7 s: " in result.out
    words = " ".join(result.out.split())
    assert "6 steps, 3 saves, 2 evaluations, a second start from a save, a sample, the end" in words
    assert "in small without: data.corpus" in result.out
    assert went == [4]
    assert not (here / "runs").exists()


def test_memory_that_a_machine_has_not_is_exit_code_1(here: Path, fourfold, went: list[int]) -> None:
    large = ("model.hidden_size=65536", "model.num_heads=512", "model.num_layers=8", "layout.offload_optimizer=true")
    result = fourfold("train", "run.toml", "--rehearse", *large, "cluster.preset=dgx-h100:1")
    assert result.code == 1
    assert "of a machine of dgx-h100:1" in result.out
    assert "a machine of dgx-h100:1's memory each" in result.err
    assert went == []


def test_pipeline_ranks_that_are_alike_share_a_row(fourfold) -> None:
    layout = ("layout.pp=4", "model.num_layers=4", "layout.microbatch_sequences=1")
    result = fourfold("train", "run.toml", "--rehearse", *layout, "layout.schedule=gpipe")
    assert result.code == 0, result.err
    assert any(line.startswith("1 to 2 ") for line in result.out.splitlines())


def test_a_fault_is_one_message_and_exit_code_1(fourfold) -> None:
    from fourfold.runtime.collectives import Handle

    with patch.object(Handle, "wait", lambda self: None):
        result = fourfold("train", "run.toml", "--rehearse", "--ranks", "2")
    assert result.code == 1
    assert result.out == ""
    assert "has not joined" in result.err
    assert "instruction `" in result.err


def test_a_mistake_is_exit_code_2(fourfold) -> None:
    assert fourfold("train", "run.toml", "--rehearse", "layout.tp=3").code == 2
