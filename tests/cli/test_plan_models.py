"""`fourfold plan` of models that cannot be trained as they are: what they are taken for is said, and planned."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fourfold.api.numbers import parse_length, parse_number
from fourfold.api.plan_request import _section
from fourfold.config import UserError
from tests.cli.planning import ASKED

UNKNOWN = {
    "model_type": "exaone4", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 128, "intermediate_size": 1024, "vocab_size": 1000, "sliding_window": 1024,
    "max_position_embeddings": 8192, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
ON = ("--cluster", "dgx-h100:8", "--batch-sequences", "64", "--keep", "1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(fourfold, raw: dict[str, Any], *more: str) -> dict[str, Any]:
    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(raw))
    result = fourfold("plan", "--model", "model", *ON, "--json", *more)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_what_is_planned_is_what_simulate_prices_and_the_plan_names_its_nearest_decoder(fourfold, here: Path) -> None:
    found = planned(fourfold, UNKNOWN, "--sequence-length", "1024", "--out", "planned.toml")
    assert found["notes"] == [
        "model/config.json: model_type = 'exaone4' is not supported; planned as the nearest model that is: norms behind "
        "attention and feed-forward stand before them"
    ]
    written = tomllib.loads((here / "planned.toml").read_text())["model"]
    assert (written["nearest_to"], len(written["lost"])) == ("exaone4", 1)
    for command in (("train",), ("job", "--as", "slurm")):
        refused = fourfold(command[0], "planned.toml", "batch.steps=5", *command[1:])
        assert refused.code == 2
        assert "model.nearest_to = 'exaone4'" in refused.err
        assert all(each in refused.err for each in written["lost"])
        allowed = fourfold(command[0], "planned.toml", "batch.steps=5", "--as-nearest", *command[1:], "--nodes", "0")
        assert "nearest_to" not in allowed.err
    job = fourfold("plan", "--model", "model", *ON, "--sequence-length", "1024", "--as", "slurm", "--out", "job.toml")
    assert (job.code, Path("job.toml").exists()) == (2, False)
    assert "model.nearest_to = 'exaone4'" in job.err
    export = planned(fourfold, UNKNOWN, "--sequence-length", "1024", "--as", "megatron")["export"]
    assert export["cannot_express"][:1] == [f"exaone4: {each}" for each in written["lost"]]
    predicted = json.loads(fourfold("simulate", "planned.toml", "--json").out)
    assert predicted["step_seconds"] == pytest.approx(found["best"][0]["step_seconds"], rel=1e-9)
    assert "planned as the nearest model" in (here / "planned.toml").read_text()


def test_windows_take_work_from_attention(fourfold, here: Path) -> None:
    long = ("--sequence-length", "8192")
    windowed, global_attention = (
        planned(fourfold, UNKNOWN, *long),
        planned(fourfold, UNKNOWN | {"sliding_window": None}, *long),
    )
    assert windowed["notes"][1] == (
        "sliding windows of 1,024 tokens in 50% of the layers are priced by what they leave of attention's work, 62%; fourfold "
        "itself runs full attention"
    )
    assert windowed["best"][0]["step_seconds"] < global_attention["best"][0]["step_seconds"]
    assert len(global_attention["notes"]) == 1


def test_windows_that_a_run_has_are_priced_layer_by_layer(fourfold, here: Path) -> None:
    """Qwen2: the layers from max_window_layers on, of four, have one."""
    raw = {"model_type": "qwen2", "use_sliding_window": True} | {
        k: v for k, v in UNKNOWN.items() if k not in ("model_type", "layer_types")
    }
    found = [
        planned(fourfold, raw | {"max_window_layers": first}, "--sequence-length", "8192") for first in (0, 1, 3, 4)
    ]
    assert all(each["notes"] == [] for each in found)
    seconds = [each["best"][0]["step_seconds"] for each in found]
    assert seconds == sorted(set(seconds)), "the fewer layers look back no further, the longer a step takes"


def test_other_layers_are_refused(fourfold, here: Path) -> None:
    (here / "config.json").write_text(json.dumps(UNKNOWN | {"layer_types": ["linear_attention"] * 4}))
    result = fourfold("plan", "--model", "config.json", *ON, "--sequence-length", "1024")
    assert result.code == 2
    assert "config.json: layer_types = ['linear_attention'" in result.err
    assert "Traceback" not in result.err


@pytest.mark.rest
def test_the_longest_context_counts_on_windows(fourfold, here: Path) -> None:
    goal = ("--sequence-length", "8192", "--objective", "context", "--budget", "30")
    found = planned(fourfold, UNKNOWN, *goal)
    assert found["sequence_length"] > 8192
    assert "sliding windows" in found["notes"][1]


def test_gemm_dtype_context_and_fragmentation_reach_the_plan_and_the_simulation(fourfold, here: Path) -> None:
    plain = planned(fourfold, UNKNOWN, "--sequence-length", "1024")
    options = ("--gemm-dtype", "fp8", "--context-bytes", "2G", "--fragmentation", "0.1")
    found = planned(fourfold, UNKNOWN, "--sequence-length", "1024", *options, "--out", "planned.toml")
    assert (found["gemm_dtype"], found["context_bytes"], found["allocator_fragmentation"]) == ("fp8", 2 * 10**9, 0.1)
    assert (plain["gemm_dtype"], plain["context_bytes"], plain["allocator_fragmentation"]) == ("bf16", 10**9, 0.03)
    predicted = json.loads(fourfold("simulate", "planned.toml", *options, "--json").out)
    assert predicted["step_seconds"] == pytest.approx(found["best"][0]["step_seconds"], rel=1e-9)
    assert predicted["memory"][0]["device_bytes"] == found["best"][0]["memory_bytes_by_pp_rank"][0]
    text = fourfold("simulate", "planned.toml", *options).out
    assert "software: fourfold, matmuls in fp8" in text
    assert "overhead   2.00 GB context and communication buffers, 10.0 % allocator fragmentation" in text


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--gemm-dtype", "int4"), "int4"),
        (("--context-bytes", "many"), "--context-bytes 'many': not a number"),
        (("--context-bytes", "5P"), "--context-bytes 5P: allowed: 0 to 1e+12"),
        (("--fragmentation", "-0.5"), "--fragmentation -0.5: allowed: 0 to 10"),
        (("--fragmentation", "nan"), "--fragmentation nan: allowed: 0 to 10"),
    ],
)
def test_software_that_cannot_be_is_refused(fourfold, options: tuple[str, str], part: str) -> None:
    common = ("--cluster", "dgx-h100:8")
    for command in (
        ("plan", "--model", "tiny", *ON, "--sequence-length", "1024"),
        ("simulate", "preset:llama3-70b", *common),
    ):
        result = fourfold(*command, *options)
        assert result.code == 2
        assert part in result.err


@pytest.mark.parametrize(
    ("hub", "preset"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
    ],
)
def test_a_name_of_the_hub_is_the_preset(hub: str, preset: str) -> None:
    assert _section(hub).preset == preset


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody/Nothing", "download its config.json into a folder"),
        ("meta-llama/Llama-3.1-8B-Instruct", "download its config.json into a folder"),
        ("./nope/config.json", "no such file or folder; allowed: a folder with a config.json, or a preset"),
        ("nope.json", "no such file or folder"),
    ],
)
def test_a_name_that_leads_nowhere_lists_no_presets(fourfold, name: str, words: str) -> None:
    refused = fourfold("plan", "--model", name, *ASKED[2:])
    assert refused.code == 2
    assert words in refused.err
    assert "mt-nlg-530b" not in refused.err


@pytest.mark.parametrize(
    ("stated", "tokens"),
    [("128k", 131_072), ("8K", 8192), ("1M", 2**20), ("4Ki", 4096), ("8192", 8192), (2048, 2048), ("1.5k", 1536)],
)
def test_lengths_of_sequences_are_powers_of_two(stated: str | int, tokens: int) -> None:
    assert parse_length(stated, "--sequence-length") == tokens
    assert parse_number("4Mi", "--batch-tokens", "16M") == 2**22
    assert parse_number("16M", "--batch-tokens", "16M") == 16e6
    with pytest.raises(UserError, match="--sequence-length"):
        parse_length("8kb", "--sequence-length")
    with pytest.raises(UserError, match=r"--sequence-length 0.*: allowed: 1 to 1e"):
        parse_length("0k", "--sequence-length")
