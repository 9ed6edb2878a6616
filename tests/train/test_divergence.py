"""A run that diverges ends, names the first bad tensor and its rank, and leaves the checkpoints from before as they are."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.train.loop import Training
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]


def make_diverging(out: Path, corpus: Path, **sections) -> Path:
    optimizer = {"lr": 1e30, "warmup_steps": 0, "clip_norm": 0.0}
    run = {"max_skipped_steps": 5, "sample_tokens": 0}
    return make_run(out, corpus, optimizer=optimizer, batch={"steps": 40}, run=run, **sections)


@pytest.mark.parametrize("layout", [{"zero": 3}, pytest.param({"pp": 2, "zero": 1}, marks=pytest.mark.rest)])
def test_a_limit_of_skipped_steps_ends_the_run(tmp_path: Path, corpus: Path, layout: dict) -> None:
    out = make_diverging(tmp_path / "run", corpus, layout=layout, checkpoint={"every_steps": 1, "keep": 1})
    codes, errors = finish(start_training(out, 2))
    assert codes == [1, 1]
    assert errors[0] == errors[1], "one message, whichever rank is asked"
    assert "diverged: the gradients of 5 steps in a row, 1 to 5, were not finite" in errors[0]
    assert "first bad tensor is the gradient of " in errors[0]
    assert f" on rank {1 if 'pp' in layout else 0}; the checkpoint of step 1 is from before" in errors[0]
    assert "optimizer.clip_norm = 1.0" in errors[0]
    assert "run.max_skipped_steps = 5 is the limit" in errors[0]
    assert "Traceback" not in errors[0]
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-000001"]
    events = lines(out / "events.jsonl")
    assert [event["step"] for event in events if event["event"] == "withhold"] == [2, 3, 4, 5]
    assert events[-1]["event"] == "failure"


def spoil_four_steps_of_five() -> None:
    """All but every fifth step see an infinite weight."""
    original = Training._train_step

    def spoiled(training: Training, *rest: Any) -> Any:
        masters = [unit.master for unit in training.units.values()]
        kept = [master.clone() for master in masters]
        if training.step % 5:
            masters[1][0] = torch.inf
        result = original(training, *rest)
        if training.step % 5:
            for master, before in zip(masters, kept, strict=True):
                master.copy_(before)
        return result

    Training._train_step = spoiled


@pytest.mark.rest
def test_a_step_that_is_taken_starts_the_count_anew(tmp_path: Path, corpus: Path) -> None:
    out = make_run(tmp_path / "run", corpus, run={"max_skipped_steps": 5, "sample_tokens": 0}, batch={"steps": 11})
    codes, errors = finish(start_training(out, 1, spoil_four_steps_of_five))
    assert codes == [0], errors
    assert lines(out / "metrics.jsonl")[-1]["skipped_steps"] == 8
    kinds = [(e["event"], e["step"]) for e in lines(out / "events.jsonl") if e["event"] in ("save", "withhold")]
    assert kinds == [("withhold", 4), ("withhold", 8), ("save", 11)]


def spoil_a_weight_of_rank_2() -> None:
    """One element, after the last finite gradient before a save."""
    original = Training._train_step

    def spoiled(training: Training, *rest: Any) -> Any:
        result = original(training, *rest)
        if training.step == 7 and training.context.rank == 2:
            training.units["b1"].master[3] = torch.nan
        return result

    Training._train_step = spoiled


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, corpus: Path) -> None:
    out = make_run(tmp_path / "run", corpus, layout={"zero": 1}, checkpoint={"keep": 1})
    codes, errors = finish(start_training(out, 4, spoil_a_weight_of_rank_2))
    assert codes == [1] * 4
    assert "the state is not finite and is not saved" in errors[3]
    assert "first bad tensor is model.layers.1." in errors[3]
    assert " on rank 2; the checkpoint of step 4 is from before" in errors[3]
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-000004"]


def spoil_a_weight_of_rank_1_for_good() -> None:
    original = Training._train_step

    def spoiled(training: Training, *rest: Any) -> Any:
        if training.step == 2 and training.context.rank == 1:
            training.units["b0"].master[3] = torch.nan
        return original(training, *rest)

    Training._train_step = spoiled


@pytest.mark.rest
def test_a_bad_weight_is_named_before_what_follows_from_it(tmp_path: Path, corpus: Path) -> None:
    out = make_run(tmp_path / "run", corpus, run={"max_skipped_steps": 2})
    codes, errors = finish(start_training(out, 2, spoil_a_weight_of_rank_1_for_good))
    assert codes == [1, 1]
    assert "first bad tensor is model.layers.0." in errors[0], "a weight, not a gradient"
    assert " on rank 1; nothing was saved before" in errors[0]
    assert not (out / "checkpoints").exists()
