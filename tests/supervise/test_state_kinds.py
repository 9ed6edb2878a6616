"""States and computations of every kind, killed and started again from memory and from disk: the same to the bit."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.support.supervised import Supervised, left_by, write_run

CHECKED = (
    "checkpoint.memory_every_steps=1",
    "faults.checksum_every_steps=3",
    "faults.replay_every_steps=4",
)
LARGER = ("model.hidden_size=64", "model.ffn_size=128")
EXPERTS = (
    *("model.num_experts=4", "model.top_k=2", "model.moe_ffn_size=32"),
    *("model.router=sigmoid", "model.balance_bias_speed=0.01"),
)
KINDS = {
    "muon in fp8": ("optimizer.name=muon", "optimizer.lr=0.02", "precision.gemm_dtype=fp8", *LARGER),
    "lion, sharded": ("optimizer.name=lion", "optimizer.lr=0.001", "layout.zero=3"),
    "mxfp8, tensor parallel": ("precision.gemm_dtype=mxfp8", "precision.compute=bf16", "layout.tp=2", *LARGER),
    "overlapped experts": (*EXPERTS, "layout.ep=2", "layout.overlap_experts=true"),
    "documents placed by work": ("layout.cp=2", "data.document_mask=true"),
    "a named back end of attention": ("run.attention_backend=flash", "layout.zero=0"),
}
QUICK = "muon in fp8"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.rest if n == QUICK else pytest.mark.faults) for n in KINDS]
)
def test_a_run_whose_ranks_are_killed_is_the_same(tmp_path: Path, name: str) -> None:
    run_file, changes = write_run(tmp_path, 14), (*CHECKED, *KINDS[name])
    with Supervised(run_file, tmp_path / "undisturbed", *changes) as run:
        assert run.finish() == 0, run.printed
    with Supervised(run_file, tmp_path / "memory", *changes) as run:
        run.wait_for_step(3)
        run.kill_rank(1)
        run.wait_for_step(8)
        run.kill_rank(0)
        assert run.finish() == 0, run.printed
        assert [event["source"] for event in run.events("resume")] == ["memory", "memory"]
        assert run.events("memory_refused") == []
        assert left_by(run.out) == left_by(tmp_path / "undisturbed")
    with Supervised(run_file, tmp_path / "disk", *changes, "checkpoint.memory_every_steps=0") as run:
        run.wait_until(lambda: run.events("save"))
        run.kill_rank(1)
        assert run.finish() == 0, run.printed
        assert [event["source"] for event in run.events("resume")] == ["disk"]
        assert left_by(run.out) == left_by(tmp_path / "undisturbed")
