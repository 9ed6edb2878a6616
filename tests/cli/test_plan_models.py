"""`fourfold plan` of models that cannot be trained as they are: what they are taken for is said, and planned."""

import json
from pathlib import Path
from typing import Any

import pytest

GEMMA = {
    "model_type": "gemma2", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 128, "intermediate_size": 1024, "vocab_size": 1000, "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 1024, "max_position_embeddings": 8192,
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
    found = planned(fourfold, GEMMA, "--sequence-length", "1024", "--out", "planned.toml")
    assert found["notes"] == [
        "model/config.json: model_type = 'gemma2' is not supported; planned as the nearest model that is: a gated "
        "gelu_pytorch_tanh as a gated silu; norms behind attention and feed-forward are left out"
    ]
    predicted = json.loads(fourfold("simulate", "planned.toml", "--json").out)
    assert predicted["step_seconds"] == pytest.approx(found["best"][0]["step_seconds"], rel=1e-9)
    assert "planned as the nearest model" in (here / "planned.toml").read_text()


def test_windows_take_work_from_attention(fourfold, here: Path) -> None:
    long = ("--sequence-length", "8192")
    windowed, global_attention = (
        planned(fourfold, GEMMA, *long),
        planned(fourfold, GEMMA | {"sliding_window": None}, *long),
    )
    assert windowed["notes"][1] == (
        "sliding windows of 1,024 tokens in 50% of the layers are priced by what they leave of attention's work, 62%; fourfold "
        "itself runs full attention"
    )
    assert windowed["best"][0]["step_seconds"] < global_attention["best"][0]["step_seconds"]
    assert len(global_attention["notes"]) == 1


def test_a_model_is_planned_beyond_its_windows(fourfold, here: Path) -> None:
    raw = {"model_type": "mistral"} | {k: v for k, v in GEMMA.items() if k not in ("model_type", "hidden_activation")}
    assert planned(fourfold, raw, "--sequence-length", "1024")["notes"] == []
    (note,) = planned(fourfold, raw, "--sequence-length", "2048")["notes"]
    assert note.startswith("sliding windows of 1,024 tokens in 100% of the layers")


def test_other_layers_are_refused(fourfold, here: Path) -> None:
    (here / "config.json").write_text(json.dumps(GEMMA | {"layer_types": ["linear_attention"] * 4}))
    result = fourfold("plan", "--model", "config.json", *ON, "--sequence-length", "1024")
    assert result.code == 2
    assert "config.json: layer_types = ['linear_attention'" in result.err
    assert "Traceback" not in result.err


@pytest.mark.rest
def test_the_longest_context_counts_on_windows(fourfold, here: Path) -> None:
    goal = ("--sequence-length", "8192", "--objective", "context", "--budget", "30")
    found = planned(fourfold, GEMMA, *goal)
    assert found["sequence_length"] > 8192
    assert "sliding windows" in found["notes"][1]


def test_gemm_dtype_context_and_fragmentation_reach_the_plan_and_the_simulation(fourfold, here: Path) -> None:
    plain = planned(fourfold, GEMMA, "--sequence-length", "1024")
    options = ("--gemm-dtype", "fp8", "--context-bytes", "2G", "--fragmentation", "0.1")
    found = planned(fourfold, GEMMA, "--sequence-length", "1024", *options, "--out", "planned.toml")
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
