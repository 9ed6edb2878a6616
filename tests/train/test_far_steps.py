"""A run's counters do not end: steps, tokens and updates go on across the numbers at which some format would, and a restart in
between changes nothing."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fourfold.checkpoint import read_manifest
from fourfold.config import load_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import rank_view, resolve_step
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import build_units
from fourfold.train import state
from tests.support.ranks import run_on_ranks
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]
TOKENS = 8 * 32
LIMITS = {"six digits": 10**6, "fp32": 2**24, "int32": 2**31, "uint32": 2**32, "doubles of tokens": 2**53 // TOKENS}
BEFORE, AFTER = 2, 3
"""Steps before a limit and after it."""


def save_as_of(rank: int, out: Path, saved: Path, step: int) -> None:
    """The state of a checkpoint saved once more in a run's folder, as that of another step."""
    config = load_run(out / "run.toml")
    model = resolve_model(config.model)
    view = rank_view(resolve_step(config, model, resolve_layout(config, model, 1)))
    units = build_units(view, rank, config.optimizer, torch.device("cpu"), lambda flat, i, into: None)
    routers = Routers(view, (), torch.device("cpu"))
    info = state.restore(saved, view, units, routers, rank)
    info |= {"step": step, "updates": step, "tokens": step * TOKENS}
    state.save(config, out, view, units, routers, step, info, rank, dist.barrier)


def _begun_at(out: Path, corpus: Path, saved: Path, step: int) -> Path:
    """A run that has made `step` steps, as its checkpoint says."""
    sections = {"batch": {"steps": step + BEFORE + AFTER}, "checkpoint": {"every_steps": 1, "keep": 9}}
    make_run(out, corpus, run={"evaluate_every": None, "sample_tokens": 0}, **sections)
    run_on_ranks(1, save_as_of, out=out, saved=saved, step=step)
    return out


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    out = make_run(tmp_path_factory.mktemp("far") / "begun", corpus, batch={"steps": 2}, checkpoint={"every_steps": 2})
    assert finish(start_training(out, 1))[0] == [0]
    return out / "checkpoints" / "step-000002"


@pytest.mark.parametrize(
    "name", ["six digits", *(pytest.param(name, marks=pytest.mark.rest) for name in LIMITS if name != "six digits")]
)
def test_a_run_goes_on_across_the_limits_of_formats(tmp_path: Path, corpus: Path, saved: Path, name: str) -> None:
    begun = LIMITS[name] - BEFORE
    out = _begun_at(tmp_path / "first", corpus, saved, begun)
    assert finish(start_training(out, 1)) == ([0], [""])
    undisturbed = lines(out / "metrics.jsonl")
    assert [line["step"] for line in undisturbed] == [begun + i for i in range(BEFORE + AFTER)]
    assert [line["tokens"] for line in undisturbed] == [(begun + 1 + i) * TOKENS for i in range(BEFORE + AFTER)]
    assert len({line["loss"] for line in undisturbed}) == len(undisturbed)
    newest = out / "checkpoints" / f"step-{LIMITS[name] + AFTER:06d}"
    assert read_manifest(newest).info["updates"] == LIMITS[name] + AFTER

    again = _begun_at(tmp_path / "again", corpus, saved, begun)
    between = out / "checkpoints" / f"step-{LIMITS[name] + 1:06d}"
    shutil.copytree(between, again / "checkpoints" / between.name)
    assert finish(start_training(again, 1)) == ([0], [""])
    assert [line["loss"] for line in lines(again / "metrics.jsonl")] == [
        line["loss"] for line in undisturbed[BEFORE + 1 :]
    ]
