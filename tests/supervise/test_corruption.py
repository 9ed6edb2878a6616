"""Bits that flip silently: the rank and the tensor are named, the run starts again from before, and is the same to the bit."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.support.supervised import Supervised, left_by, write_run

LAYOUT = ("layout.zero=0", "faults.checksum_every_steps=4", "faults.replay_every_steps=4")
BLOCK = "model.layers.1."


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), 20)


@pytest.fixture(scope="module", params=[3, pytest.param(2, marks=pytest.mark.faults)])
def undisturbed(run_file: Path, request: pytest.FixtureRequest):
    """The ranks, and what the run leaves on so many."""
    with Supervised(run_file, run_file.parent / f"undisturbed-{request.param}", *LAYOUT, ranks=request.param) as run:
        assert run.finish() == 0, run.printed
        assert run.events("failure") == []
        return request.param, left_by(run.out)


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("fault", "step", "tensor"),
    [
        pytest.param("parameter:1:6:1", 7, BLOCK, marks=pytest.mark.rest),
        pytest.param("state:1:7:1", 7, f"exp_avg of {BLOCK}", marks=pytest.mark.faults),
        pytest.param("parameter:1:8:1", 10, BLOCK, marks=pytest.mark.faults),
        pytest.param("gradient:1:7:1", 7, f"the gradient of {BLOCK}", marks=pytest.mark.rest),
    ],
    ids=["in the next checked step", "in this one", "before a save", "by replay"],
)
def test_a_flipped_bit(undisturbed, run_file: Path, tmp_path: Path, fault: str, step: int, tensor: str) -> None:
    """Named within four steps, and before anything is saved; in a gradient before the update of the step that computes twice."""
    ranks, expected = undisturbed
    own = tmp_path / "run.toml"  # faults are counted in its folder
    own.write_text(run_file.read_text())
    with Supervised(own, tmp_path / "run", *LAYOUT, ranks=ranks, fault=fault) as run:
        assert run.finish() == 0, run.printed
        assert left_by(run.out) == expected
    (event,) = run.events("corruption")
    assert event["step"] == step
    assert event["tensor"].startswith(tensor)
    assert event["tensor"] in run.events("failure")[0]["message"]
    assert len(run.events("restart")) == 1
    if ranks > 2 or fault.startswith("gradient"):
        assert event["ranks"] == [1]
        assert run.events("failure")[0]["rank"] == 1
    else:
        assert event["ranks"] == [0, 1]


@pytest.mark.rest
@pytest.mark.parametrize(("step", "every"), [(7, 4), (8, 1)])
def test_a_bit_that_flips_in_what_one_rank_alone_holds(run_file: Path, tmp_path: Path, step: int, every: int) -> None:
    """Optimizer states that ZeRO shards have no replica: their rank compares them with what its last update left."""
    own = tmp_path / "run.toml"
    own.write_text(run_file.read_text())
    changes = ("layout.zero=1", f"faults.checksum_every_steps={every}")
    with Supervised(own, tmp_path / "undisturbed", *changes) as run:
        assert run.finish() == 0, run.printed
    with Supervised(own, tmp_path / "run", *changes, fault=f"state:1:{step}:1") as run:
        assert run.finish() == 0, run.printed
        (event,) = run.events("corruption")
        assert (event["step"], event["ranks"]) == (step, [1])
        assert event["tensor"].startswith(f"exp_avg of {BLOCK}")
        assert [failure["rank"] for failure in run.events("failure")] == [1]
        assert left_by(run.out) == left_by(tmp_path / "undisturbed")


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(("layout.zero=0",), marks=pytest.mark.rest),
        pytest.param(("layout.zero=3", "layout.microbatch_sequences=3"), marks=pytest.mark.faults),
        pytest.param(("layout.zero=0", "layout.pp=2"), marks=pytest.mark.faults),
    ],
    ids=["replicas", "sharded", "stages"],
)
def test_one_nan_is_named(run_file: Path, tmp_path: Path, layout: tuple[str, ...]) -> None:
    """Every rank skips the step, and one event names whose gradient it was; the run goes on."""
    own = tmp_path / "run.toml"
    own.write_text(run_file.read_text())
    with Supervised(own, tmp_path / "run", *layout, fault="nan:1:7:1") as run:
        assert run.finish() == 0, run.printed
        (event,) = run.events("skip")
        assert event["step"] == 7
        assert event["tensor"].startswith(f"the gradient of {BLOCK}")
        assert event["tensor"].endswith(" on rank 1")
        assert run.events("failure") == []
