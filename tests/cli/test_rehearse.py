"""`fourfold train --rehearse`: a screen of what every pipeline rank would do, and nothing started."""

from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("torch")


def test_a_screen_and_no_folder(here: Path, fourfold) -> None:
    result = fourfold("train", "run.toml", "--rehearse", "--ranks", "4", "layout.pp=2", "layout.microbatch_sequences=2")
    assert result.code == 0, result.err
    head, first, second = (line for line in result.out.splitlines() if line.startswith(("pipeline rank", "0 ", "1 ")))
    assert head.split()[-4:] == ["step", "peak", "predicted", "sends"]
    assert first.split()[0] == "0"
    assert second.split()[0] == "1"
    assert "1 x Tensor.tolist() (runtime/device.py" in result.out
    assert not (here / "runs").exists()


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
