"""A device that is lost: a spare takes its place and the run is the same to the bit, or fewer ranks go on with the same samples."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.checkpoint import read_manifest
from tests.support.supervised import Supervised, left_by, read_lines, write_run

FP64 = ("precision.compute=fp64", "faults.elastic=true", "faults.probe_seconds=0.5", "checkpoint.keep=50")


def losses(out: Path) -> list[tuple]:
    """Values that agree to the bit under every layout, then those that agree to 1e-9."""
    return [
        (row["step"], row["tokens"], row["lr"], *(pytest.approx(row[key], rel=1e-9) for key in ("loss", "grad_norm")))
        for row in read_lines(out / "metrics.jsonl")
    ]


def exact(out: Path) -> list[tuple]:
    keys = ("step", "tokens", "lr", "loss", "grad_norm")
    return [tuple(row[key] for key in keys) for row in read_lines(out / "metrics.jsonl")]


def stop(run: Supervised) -> None:
    run.process.terminate()
    assert run.finish() == 143, run.printed


def break_device(run_file: Path) -> None:
    (run_file.parent / "broken").write_text("")


@pytest.mark.rest
def test_a_spare_takes_the_place_of_a_device_that_does_not_start_again(tmp_path: Path) -> None:
    run_file = write_run(tmp_path, 20)
    with Supervised(run_file, tmp_path / "undisturbed") as run:
        assert run.finish() == 0, run.printed
    with Supervised(run_file, tmp_path / "run", flags=("--spares", "1"), fault="device:1::") as run:
        run.wait_for_step(6)
        break_device(run_file)
        run.kill_rank_for_ever(1)
        assert run.finish() == 0, run.printed
        assert [event["slot"] for event in run.events("lose")] == [1]
        assert "device 1 does not answer" in run.events("lose")[0]["message"]
        assert run.events("resize") == []
        assert len(run.events("failure")) == 3, "a kill, and two starts that failed"
    assert left_by(tmp_path / "run") == left_by(tmp_path / "undisturbed")


@pytest.mark.faults
def test_without_a_spare_a_device_that_fails_ends_the_run(tmp_path: Path) -> None:
    run_file = write_run(tmp_path, 20)
    break_device(run_file)
    with Supervised(run_file, tmp_path / "run", fault="device:1::") as run:
        assert run.finish() == 1, run.printed
        assert "device 1 does not answer" in run.printed
        assert run.events("lose") == []


@pytest.mark.faults
@pytest.mark.parametrize(
    ("changes", "fewer"),
    [
        ((), 3),
        (("layout.zero=3", "faults.min_ranks=2", "batch.global_sequences=16"), 2),
        (("layout.pp=2", "layout.zero=0"), 3),
        (("cluster.preset=dgx-h100",), 3),
    ],
    ids=["4 to 3", "4 to 2, as 3 do not divide the batch", "a pipeline", "a planner's layout"],
)
def test_fewer_ranks_go_on_and_grow_back_with_the_same_samples(tmp_path: Path, changes, fewer: int) -> None:
    run_file = write_run(tmp_path, 100_000)
    with Supervised(run_file, tmp_path / "run", *FP64, *changes, ranks=4, fault="device:3::") as run:
        run.wait_for_step(6)
        break_device(run_file)
        run.kill_rank_for_ever(3)
        run.wait_until(lambda: run.events("resize"))
        run.ranks = fewer
        run.wait_for_step(run.events("resize")[0]["step"] + 5)
        (run_file.parent / "broken").unlink()
        run.wait_until(lambda: len(run.events("resize")) == 2)
        run.ranks = 4
        down, up = run.events("resize")
        run.wait_for_step(up["step"] + 5)
        stop(run)
        assert (down["ranks"], up["ranks"]) == (fewer, 4)
        assert "device 3 of machine 0" in down["message"]
        assert f"goes on at step {down['step']} with {fewer} of 4 ranks" in run.printed
        assert run.events("stop")[0]["step"] == up["step"], "no step is lost to grow"
    with Supervised(run_file, tmp_path / "undisturbed", *FP64, *changes, ranks=4) as run:
        run.wait_until(lambda: len(exact(run.out)) >= len(exact(tmp_path / "run")))
        stop(run)
    assert exact(tmp_path / "run") == losses(tmp_path / "undisturbed")[: len(exact(tmp_path / "run"))]
    fences = [read_manifest(path).info["fence"] for path in sorted((tmp_path / "run" / "checkpoints").glob("step-*"))]
    assert fences == sorted(fences)
