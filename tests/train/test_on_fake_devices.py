"""Whole trainings on CUDA devices that are not there: every branch on the device goes CUDA's way, with the numbers of a processor.

Launch, groups by NCCL's name, back ends that are tried, batches, steps on streams, saves beside training, copies of the state,
evaluations, a killed rank, a sample: see `rehearse/fake_devices.py`.
"""

import os
from pathlib import Path

import pytest

from fourfold.rehearse.training import ON_IMPORT
from tests.support.grid import others_are_rest
from tests.support.supervised import Supervised, read_lines, write_run

STEPS = 8
COMMON = (
    "precision.compute=fp64",
    f"batch.steps={STEPS}",
    "checkpoint.asynchronous=true",
    "run.evaluate_every=4",
    "faults.checksum_every_steps=2",
)
MIXTRAL = ("family=mixtral", "num_experts=4", "top_k=2", "moe_ffn_size=24")
LAYOUTS: dict[str, tuple[str, ...]] = {
    "zero 3": ("layout.zero=3", "checkpoint.memory_every_steps=2"),
    "tp": ("layout.tp=2", "layout.dp_shard=1"),
    "zero bubble": (
        "layout.pp=2",
        "layout.dp_shard=1",
        "layout.schedule=zb_v",
        "layout.virtual_stages=2",
        "model.num_layers=4",
    ),
    "ring, documents": ("layout.cp=2", "layout.dp_shard=1", "data.document_mask=true"),
    "offloaded": ("layout.offload=activations", "layout.offload_optimizer=true", "model.num_layers=6"),
    "muon": ("optimizer.name=muon",),
    "muon, replicas, offloaded": (
        "optimizer.name=muon",
        "layout.dp_replicate=2",
        "layout.dp_shard=1",
        "layout.offload_optimizer=true",
    ),
    "experts": ("layout.ep=2", *(f"model.{key}" for key in MIXTRAL)),
}


def _losses(out: Path) -> list[list[float]]:
    keys = ("loss", "grad_norm", "validation_loss")
    return [[row[key] for key in keys if row.get(key) is not None] for row in read_lines(out / "metrics.jsonl")]


def _trained(run: Path, name: str, *changes: str, kill_after: int | None = None) -> list[list[float]]:
    with Supervised(run, run.parent / name, *COMMON, *changes) as launch:
        if kill_after is not None:
            launch.wait_for_step(kill_after)
            launch.kill_rank(1)
        assert launch.finish() == 0, launch.printed
    return _losses(run.parent / name)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ON_IMPORT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FOURFOLD_FAKE_DEVICES", "2")


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("layout", others_are_rest(LAYOUTS, ("zero 3",)))
def test_a_training_is_that_of_a_processor(layout: str, tmp_path: Path) -> None:
    run = write_run(tmp_path)
    expected = _trained(run, "cpu", *LAYOUTS[layout])
    actual = _trained(run, "cuda", *LAYOUTS[layout], "run.device=cuda", "run.sample_tokens=8")
    assert len(actual) == STEPS
    for here, there in zip(actual, expected, strict=True):
        assert here == pytest.approx(there, rel=1e-9)
    events = {row["event"]: row for row in read_lines(tmp_path / "cuda" / "events.jsonl")}
    assert events["sample"]["text"]


@pytest.mark.usefixtures("devices")
@pytest.mark.rest
def test_a_killed_rank_changes_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    longer = ("run.device=cuda", "batch.steps=20")
    expected = _trained(run, "plain", *longer)
    assert _trained(run, "killed", *longer, kill_after=6) == expected
