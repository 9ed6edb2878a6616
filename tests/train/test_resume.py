"""A run whose newest checkpoints cannot be read goes on from the one before them, says so, and is the same run to the bit."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.checkpoint import read_manifest
from fourfold.checkpoint.manifest import _digest
from fourfold.config import FinalFailure
from fourfold.train.resume import Resumption
from fourfold.train.sample import generate
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]
RANKS = 2


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_one_shard(checkpoints: Path) -> None:
    damage(checkpoints / "step-000008" / "rank-00001.safetensors")  # which rank 0 does not read


def lose_the_manifest(checkpoints: Path) -> None:
    (checkpoints / "step-000008" / "manifest.json").unlink()


def copy_an_older_one(checkpoints: Path) -> None:
    shutil.rmtree(checkpoints / "step-000008")
    shutil.copytree(checkpoints / "step-000004", checkpoints / "step-000900")


def lose_the_counters(checkpoints: Path) -> None:
    path = checkpoints / "step-000008" / "manifest.json"
    document = json.loads(path.read_text())
    del document["sha256"], document["info"]["step"]
    path.write_text(json.dumps({**document, "sha256": _digest(document)}))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    out = make_run(
        tmp_path_factory.mktemp("resume") / "undisturbed", corpus, layout={"zero": 2}, checkpoint={"keep": 9}
    )
    assert finish(start_training(out, RANKS))[0] == [0] * RANKS
    return out


@pytest.fixture
def stopped(undisturbed: Path, tmp_path: Path) -> Path:
    """The run with its checkpoints of steps 4 and 8."""
    out = shutil.copytree(undisturbed, tmp_path / "stopped")
    shutil.rmtree(out / "checkpoints" / "step-000012")
    (out / "events.jsonl").unlink()
    return out


@pytest.mark.parametrize(
    ("harm", "step", "word"),
    [
        (damage_one_shard, 8, "rank-00001.safetensors is corrupt"),
        pytest.param(lose_the_manifest, 8, "manifest.json does not exist", marks=pytest.mark.rest),
        pytest.param(copy_an_older_one, 900, "is of step 4: the folder was copied or renamed", marks=pytest.mark.rest),
        pytest.param(lose_the_counters, 8, "info.step = None", marks=pytest.mark.rest),
    ],
)
def test_it_goes_on_from_the_one_before(
    stopped: Path, undisturbed: Path, harm: Callable[[Path], None], step: int, word: str
) -> None:
    harm(stopped / "checkpoints")
    codes, errors = finish(start_training(stopped, RANKS))
    assert codes == [0] * RANKS, errors
    refused, resumed = lines(stopped / "events.jsonl")[:2]
    assert (refused["event"], refused["step"]) == ("refuse", step)
    assert word in refused["message"]
    assert "delete" not in refused["message"], "nothing is left for a person to do"
    assert (resumed["event"], resumed["step"]) == ("resume", 4)
    ours, theirs = (read_manifest(out / "checkpoints" / "step-000012").files for out in (stopped, undisturbed))
    assert ours == theirs, "weights and optimizer states are the same to the bit"
    for key in ("step", "loss", "grad_norm", "tokens"):
        pairs = [[line.get(key) for line in lines(out / "metrics.jsonl")] for out in (stopped, undisturbed)]
        assert pairs[0] == pairs[1], key


def test_without_any_that_can_be_read_it_does_not_begin_again(stopped: Path) -> None:
    for name in ("step-000004", "step-000008"):
        damage(stopped / "checkpoints" / name / "rank-00000.safetensors")
    metrics = (stopped / "metrics.jsonl").read_bytes()
    codes, errors = finish(start_training(stopped, RANKS))
    assert codes == [1] * RANKS
    assert "none of its checkpoints can be read" in errors[1]
    assert "step-000004" in errors[0]
    assert "Traceback" not in errors[0]
    assert [event["step"] for event in lines(stopped / "events.jsonl")] == [8, 4]
    assert (stopped / "metrics.jsonl").read_bytes() == metrics


class _Alone:
    """The context of a run of one rank."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        self.store = self
        self._text = ""

    def set(self, key: str, value: str) -> None:
        self._text = value

    def get(self, key: str) -> str:
        return self._text

    def least(self, value: int) -> int:
        return value

    def tell(self, text: str, source: int) -> str:
        return text


@pytest.mark.parametrize(
    "error",
    [
        KeyError("b3.master"),
        struct.error("unpack"),
        EOFError(),
        RecursionError("deep"),
        AssertionError(),
        OSError(5, "I/O"),
    ],
    ids=repr,
)
def test_no_list_of_errors_decides_what_damage_is(tmp_path: Path, error: Exception) -> None:
    def restore(path: Path, copy: Any) -> dict[str, int]:
        if path.name == "step-000008":
            raise error
        return {"step": 4, "tokens": 1, "skipped_steps": 0, "updates": 4}

    told: list[tuple[int, str]] = []
    paths = [tmp_path / "step-000008", tmp_path / "step-000004"]
    resumption = Resumption(lambda: paths, _Alone())  # type: ignore[arg-type]
    assert resumption.restore(restore, lambda step, problem: told.append((step, problem)))["step"] == 4
    ((step, problem),) = told
    assert step == 8
    assert f"step-000008 cannot be read ({type(error).__name__}" in problem


@pytest.mark.parametrize(
    "error",
    [
        *(MemoryError(), FinalFailure("another version"), torch.OutOfMemoryError("CUDA")),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=repr,
)
def test_what_another_checkpoint_does_not_cure_passes_none_over(tmp_path: Path, error: Exception) -> None:
    def restore(path: Path, copy: Any) -> dict[str, int]:
        raise error

    resumption = Resumption(lambda: [tmp_path / "step-000008"], _Alone())  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        resumption.restore(restore, lambda step, problem: pytest.fail("passed over"))


def test_a_sample_comes_from_the_newest_that_can_be_read(stopped: Path, undisturbed: Path) -> None:
    copy_an_older_one(stopped / "checkpoints")
    passed: list[str] = []
    text = generate(stopped, "document", 4, 0.0, 0, passed.append)
    shutil.rmtree(stopped / "checkpoints" / "step-000900")
    assert text == generate(stopped, "document", 4, 0.0, 0)
    assert len(passed) == 1
    assert passed[0].startswith("step-000900 is not used")
