"""`fourfold job`: what it writes, what it says is missing, and what it refuses."""

import re
from pathlib import Path

import pytest
import yaml

from tests.cli.planning import DECIDED

SIZE = ("--nodes", "2", "--devices-per-node", "2")


def test_a_script_is_printed_and_notes_stand_beside_it(fourfold, here: Path) -> None:
    done = fourfold("job", "run.toml", "--as", "slurm", *SIZE)
    assert done.code == 0
    assert done.out.startswith("#!/bin/bash\n")
    assert f"cd -- {here}" in done.out
    assert f"train {here / 'run.toml'} --ranks 2 --out runs/run --nodes 2" in done.out
    assert "--partition" in done.err
    assert "checkpoint.every_steps" in done.err


def test_a_file_is_written_with_the_command_that_submits_it(fourfold, here: Path) -> None:
    size = (*SIZE, "checkpoint.every_steps=2")
    done = fourfold("job", "run.toml", "--as", "k8s", *size, "--storage", "claim", "--out", "job.yaml")
    assert (done.code, done.err) == (0, "")
    assert "kubectl apply -f job.yaml" in done.out
    assert "(YOUR-... in the file): --image\n" in done.out
    assert "data.corpus = texts" in done.out
    config_map, train_job = yaml.safe_load_all((here / "job.yaml").read_text())
    assert "every_steps = 2" in config_map["data"]["run.toml"]
    assert train_job["spec"]["trainer"]["numProcPerNode"] == 2
    assert "resourcesPerNode" not in train_job["spec"]["trainer"], "the run is for CPUs"
    again = fourfold("job", "run.toml", "--as", "k8s", *SIZE, "--out", "job.yaml")
    assert again.code == 2
    assert "new-job.yaml" in again.err


def test_nodes_come_from_layout_and_cluster(fourfold) -> None:
    batch = "batch.global_sequences=512"
    done = fourfold("job", "run.toml", batch, "run.device=auto", "--as", "slurm", "--cluster", "dgx-h100:32")
    assert "#SBATCH --nodes=4\n" in done.out
    assert "#SBATCH --gpus-per-node=8\n" in done.out
    done = fourfold(
        "job", "run.toml", batch, "layout.dp_shard=8", "layout.tp=2", "--as", "slurm", "--cluster", "dgx-h100"
    )
    assert "#SBATCH --nodes=2\n" in done.out


def test_a_preset_of_a_run_is_a_job(fourfold) -> None:
    done = fourfold("job", "preset:llama3-70b", "batch.steps=10000", *DECIDED[:2], "--as", "skypilot")
    assert done.code == 0, done.err
    task = yaml.safe_load(done.out)
    assert "file_mounts" not in task
    assert "train preset:llama3-70b" in task["run"]


def test_the_automatic_layout_is_planned_for_the_same_cluster(fourfold) -> None:
    words = ("layout=auto", "batch.global_sequences=64", "batch.sequence_length=64", "--cluster", "dgx-h100:8")
    done = fourfold("job", "run.toml", *words, "--as", "slurm")
    assert done.code == 0, done.err
    assert "cluster.preset=dgx-h100:8" in done.out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--as", "slurm"), "--nodes 2 --devices-per-node 8"),
        (("--as", "slurm", *SIZE, "--image", "x"), "--image x: says nothing with --as slurm"),
        (("--as", "k8s", *SIZE, "--time", "1"), "allowed: --image, --storage, --namespace"),
        (("--as", "slurm", *SIZE, "--folder", "a/b"), "absolute path"),
        (("--as", "slurm", *SIZE, "--partition", "a b"), "--partition gpu"),
        (("--as", "slurm", "--nodes", "0", "--devices-per-node", "2"), "--nodes 8"),
        (("--as", "slurm", "--cluster", "dgx-h100:13"), "multiple"),
        (("--as", "slurm", "--cluster", "dgx-h100:16"), "batch.global_sequences"),
        (("--as", "slurm", *SIZE, "layout.dp_shard=2"), "the layout has 2 ranks, the nodes have 4"),
        (
            ("--as", "slurm", "--cluster", "dgx-h100:8", "layout.dp_shard=12"),
            "the layout has 12 ranks, the nodes have 8",
        ),
        (("--as", "nomad", *SIZE), "slurm"),
        (("batch.steps=none", "--as", "slurm", *SIZE), "batch.steps"),
        (("--as", "slurm", *SIZE, "--out", "no/job.sh"), "--out job.sh"),
    ],
)
def test_mistakes_are_named(fourfold, words: tuple[str, ...], named: str) -> None:
    done = fourfold("job", "run.toml", *words)
    assert done.code == 2
    assert re.search(re.escape(named), done.err)
    assert "Traceback" not in done.err
