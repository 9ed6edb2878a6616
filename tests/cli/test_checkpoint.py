"""`fourfold checkpoint` on a real run: what is listed, verified, exported, resharded and run again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
RUN = """
[model]
num_layers = 2
hidden_size = 32
num_heads = 4
num_kv_heads = 2
ffn_size = 56
[data]
corpus = "texts"
tokenizer = "bytes"
[batch]
global_sequences = 4
sequence_length = 16
steps = 9
[layout]
zero = 1
[checkpoint]
every_steps = 3
keep = 9
[run]
device = "cpu"
sample_tokens = 0
"""
STEPS = [3, 6, 9]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that two ranks finished."""
    import os

    from fourfold.cli.app import run

    here = tmp_path_factory.mktemp("finished")
    (here / "texts").mkdir()
    for number in range(3):
        (here / "texts" / f"{number}.txt").write_text(f"The {number}th text is about numbers.\n" * 30)
    (here / "run.toml").write_text(RUN)
    before = Path.cwd()
    os.chdir(here)
    try:
        assert run(["train", "run.toml", "--ranks", "2"]) == 0
    finally:
        os.chdir(before)
    return here


@pytest.fixture
def run(finished: Path, here: Path) -> Path:
    """A copy of it, in the current folder."""
    shutil.copytree(finished / "runs", here / "runs")
    return here / "runs" / "run"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_list_names_step_size_and_layout(run: Path, fourfold: Callable) -> None:
    rows = json.loads(fourfold("checkpoint", "list", "runs/run", "--json").out)["checkpoints"]
    assert [row["step"] for row in rows] == STEPS
    assert all(row["layout"]["dp_shard"] == 2 and row["size_bytes"] > 100_000 for row in rows)
    assert len({row["chain"] for row in rows}) == 3
    assert set(rows[0]["versions"]) == {"fourfold", "torch", "python"}
    lines = fourfold("checkpoint", "list", "runs/run").out.splitlines()
    assert len(lines) == 3
    assert "dp_shard 2 zero 1" in lines[0]
    assert len(fourfold("checkpoint", "list", "runs/run", "--step", "6").out.splitlines()) == 1


def test_verify_finds_the_one_that_changed(run: Path, fourfold: Callable) -> None:
    assert fourfold("checkpoint", "verify", "runs/run").code == 0
    flip(run / "checkpoints" / "step-000006" / "rank-00001.safetensors")
    result = fourfold("checkpoint", "verify", "runs/run")
    assert result.code == 1
    assert "step-000006/rank-00001.safetensors is corrupt: bytes" in result.err
    assert len(result.out.splitlines()) == 2
    found = json.loads(fourfold("checkpoint", "verify", "runs/run", "--json").out)["checkpoints"]
    assert [row["problem"] is None for row in found] == [True, False, True]
    assert fourfold("checkpoint", "verify", "runs/run/checkpoints/step-000009").code == 0


@pytest.mark.rest
def test_replay_runs_steps_again_and_says_whether_they_are_equal(run: Path, fourfold: Callable) -> None:
    result = fourfold("checkpoint", "verify", "runs/run", "--step", "3", "--replay", "3")
    assert result.code == 0, result.err
    assert (
        "steps 3 to 5 run again: losses, gradient norms and the state after them are equal, bit for bit" in result.out
    )
    assert [path.name for path in run.iterdir() if path.name.startswith("replay-")] == []
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[7]["loss"] += 1e-12
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = fourfold("checkpoint", "verify", "runs/run", "--step", "6", "--replay", "2")
    assert result.code == 1
    assert "not equal when run again: step 7: loss is" in result.err
    result = fourfold("checkpoint", "verify", "runs/run", "--replay", "2")
    assert result.code == 2
    assert "has no steps after step-000009" in result.err


def test_export_needs_the_checkpoint_alone(run: Path, fourfold: Callable) -> None:
    transformers = pytest.importorskip("transformers")
    alone = run.parent.parent / "elsewhere" / "step-000006"
    shutil.copytree(run / "checkpoints" / "step-000006", alone)
    assert fourfold("checkpoint", "export", str(alone), "--out", "hf").code == 0
    assert fourfold("export", "runs/run", "--step", "6", "--out", "hf-2").code == 0
    one, other = (transformers.AutoModelForCausalLM.from_pretrained(name) for name in ("hf", "hf-2"))
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    assert all((a == b).all() for a, b in pairs)


def test_reshard_writes_what_another_layout_saves_and_it_goes_on(run: Path, fourfold: Callable) -> None:
    layout = ("layout.tp=2", "layout.pp=2", "layout.zero=0")
    result = fourfold("checkpoint", "reshard", "runs/run", "--step", "6", *layout, "--out", "resharded")
    assert result.code == 0, result.err
    (row,) = json.loads(fourfold("checkpoint", "list", "resharded", "--json").out)["checkpoints"]
    assert (row["step"], row["layout"]["tp"], row["layout"]["pp"], row["layout"]["dp_shard"]) == (6, 2, 2, 1)
    assert fourfold("checkpoint", "verify", "resharded").code == 0
    again = fourfold("checkpoint", "reshard", "resharded", "layout.zero=1", "--ranks", "2", "--out", "back")
    assert again.code == 0, again.err
    for name in ("rank-00000.safetensors", "rank-00001.safetensors"):
        original = (run / "checkpoints" / "step-000006" / name).read_bytes()
        assert (Path("back") / "step-000006" / name).read_bytes() == original


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list", "texts"), ["texts: holds no run.toml and no checkpoint"]),
        (("export", "runs/run"), ["--out is missing"]),
        (("verify", "runs/run", "--step", "4"), ["--step 4", "3, 6, 9"]),
        (("reshard", "runs/run", "batch.steps=3", "--out", "x"), ["batch.steps=3: only the layout changes"]),
        (("reshard", "runs/run", "layout.tp=3", "--out", "x"), ["layout.tp = 3"]),
    ],
    ids=str,
)
def test_mistakes(run: Path, fourfold: Callable, arguments: tuple[str, ...], words: list[str]) -> None:
    result = fourfold("checkpoint", *arguments)
    assert result.code == 2
    assert all(word in result.err for word in words), result.err
