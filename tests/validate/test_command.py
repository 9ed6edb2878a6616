"""`fourfold validate`: the example and the tests' cases, a run's folder, one JSON document, one message for what is wrong."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fourfold.cli.app import run as run_command
from fourfold.config import dump_run, load_run
from fourfold.launch.resolve import resolve_run

CASES = Path(__file__).parent / "cases.toml"
EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def validate(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command(["validate", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def trained(folder: Path, *overrides: str, seconds: tuple[float, ...] = (9.0, 2.0, 1.0, 3.0)) -> Path:
    """A folder as a run leaves it."""
    config = resolve_run(load_run(EXAMPLES / "stdlib.toml", overrides), 2, 4096).config
    folder.mkdir()
    (folder / "run.toml").write_text(dump_run(config))
    rows = [{"step": i, "step_seconds": s, "peak_memory_bytes": 5e7} for i, s in enumerate(seconds)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 4, "step_sec')
    return folder


def test_json_is_one_document_with_every_case_and_the_metrics(validate: Run) -> None:
    code, out, _ = validate(CASES, "--json")
    document = json.loads(out)
    assert code == 0
    assert [case["name"] for case in document["cases"]] == ["fsdp", "tp", "ddp", "own", "too large"]
    for case in document["cases"]:
        assert case["predicted_step_seconds"] > 0
        assert case["refused"] is None
    fsdp, large = document["cases"][0], document["cases"][-1]
    assert fsdp["step_error"] == pytest.approx(fsdp["predicted_step_seconds"] / 0.35 - 1)
    assert fsdp["memory_error"] == pytest.approx(fsdp["predicted_peak_memory_bytes"] / 30e9 - 1)
    assert fsdp["measured_mfu"] == pytest.approx(fsdp["predicted_mfu"] * (1 + fsdp["step_error"]))
    assert (large["out_of_memory"], large["predicted_to_fit"], large["step_error"]) == (True, False, None)
    metrics = document["metrics"]
    assert (metrics["step"]["count"], metrics["memory"]["count"]) == (4, 2)
    assert (metrics["ranking"]["groups"], metrics["ranking"]["layouts"]) == (1, 3)
    assert (metrics["fit"]["failed"], metrics["fit"]["failed_predicted_not_to_fit"]) == (1, 1)


def test_the_example_is_ranked_and_close(validate: Run) -> None:
    code, out, _ = validate(EXAMPLES / "cases.toml")
    assert code == 0
    for text in (
        "tp 2, pp 2",
        "out of memory",
        "5 steps",
        "of which the prediction's is",
        "5 in 1 groups",
        "rank correlation",
    ):
        assert text in out
    metrics = json.loads(validate(EXAMPLES / "cases.toml", "--json")[1])["metrics"]
    assert metrics["step"]["mean"] < 0.15
    assert metrics["memory"]["mean"] < 0.25


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from fourfold.cli.app import run; "
        f"assert run(['validate', {str(CASES)!r}]) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True)


def test_a_runs_folder_is_a_case(validate: Run, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "layout.dp_shard=2")
    code, out, _ = validate(folder, "--cluster", "dgx-h100:2", "--json")
    [case] = json.loads(out)["cases"]
    assert code == 0
    assert case["measured_step_seconds"] == 2.0, "the median without the first step"
    assert (case["measured_peak_memory_bytes"], case["num_devices"], case["software"]) == (5e7, 2, "fourfold")
    assert case["predicted_step_seconds"] > 0
    both = json.loads(validate(folder, CASES, "--cluster", "dgx-h100:2", "--json")[1])
    assert len(both["cases"]) == 6


def test_a_run_that_says_its_cluster_needs_no_option(validate: Run, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "layout.dp_shard=2", 'cluster.preset="dgx-h100:8"')
    assert validate(folder)[0] == 0


def test_the_folder_of_a_run_without_a_machine_or_steps_is_one_message(validate: Run, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    code, _, err = validate(folder)
    assert code == 2
    assert "fourfold calibrate" in err
    code, _, err = validate(trained(tmp_path / "short", seconds=(1.0,)), "--cluster", "dgx-h100:2")
    assert code == 2
    assert "fewer than two steps" in err
    code, _, err = validate(tmp_path)
    assert code == 2
    assert "run.toml" in err


def test_a_refused_case_is_named_and_fails_where_it_is_the_only_one(validate: Run, tmp_path: Path) -> None:
    text = (
        'cluster = "dgx-h100:8"\nmodel = { preset = "llama3.2-1b" }\nbatch = { global_sequences = 8, sequence_length = 2048 }\n'
        'precision = { compute = "bf16" }\n[[case]]\nname = "odd"\nmeasured = { mfu = 0.4 }\nlayout = { tp = 3 }\n'
    )
    (tmp_path / "odd.toml").write_text(text)
    code, out, _ = validate(tmp_path / "odd.toml")
    assert code == 1
    assert "not predicted: odd: layout.tp = 3" in out
    (tmp_path / "both.toml").write_text(text + '[[case]]\nname = "good"\nmeasured = { mfu = 0.4 }\n')
    assert validate(tmp_path / "both.toml")[0] == 0


@pytest.mark.parametrize("arguments", [[], ["nowhere.toml"], [CASES, "--cluster"], [CASES, "--jsn"]])
def test_wrong_use_is_one_message(validate: Run, arguments: list[Any]) -> None:
    code, out, err = validate(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_a_preset_is_near_its_published_figure(validate: Run) -> None:
    code, out, _ = validate("preset:gpt3-175b", "--json")
    (alone,) = json.loads(out)["cases"]
    assert (code, alone["name"], alone["predicted_to_fit"]) == (0, "gpt3-175b", True)
    assert abs(alone["step_error"]) < 0.25


@pytest.mark.rest
def test_the_presets_are_near_their_published_figures_and_fit(validate: Run) -> None:
    """Every run that ran is predicted to fit."""
    code, out, _ = validate("presets", "--json")
    found = json.loads(out)
    assert code == 0
    cases = {case["name"]: case for case in found["cases"]}
    assert {"deepseek-v3-2k", "llama3-405b-8k", "llama3-405b-128k", "mt-nlg-530b", "megatron-1t"} <= set(cases)
    assert all(case["predicted_to_fit"] for case in cases.values())
    assert all(abs(case["step_error"]) < 0.25 for case in cases.values())
    assert found["metrics"]["step"]["median"] < 0.08
    code, out, _ = validate("preset:gpt3-175b", "--json")
    (alone,) = json.loads(out)["cases"]
    assert alone == cases["gpt3-175b"]
    code, _, err = validate("preset:llama3-405b-128k-24k")
    assert (code, "no published figure" in err, "fourfold validate presets" in err) == (2, True, True)
