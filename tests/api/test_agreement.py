"""The numbers of the API and of `--json` are the same, to the last digit, whatever form the request has."""

import json
from pathlib import Path

import pytest
import tomli_w

import fourfold as ff
from tests.calibrate.machine_table import cluster
from tests.support.grid import others_are_rest

SIMULATED = {
    "a preset": ("preset:llama3-70b", (), {}),
    "a preset on its own cluster": ("preset:mixtral-8x22b-256", (), {}),
    "another cluster": ("preset:llama3-70b", (), {"cluster": "dgx-h100:128"}),
    "overrides": ("preset:llama3-70b", ("layout.zero=1", "layout.recompute=full"), {"cluster": "dgx-h100:128"}),
    "software": ("preset:llama3-70b", (), {"cluster": "dgx-h100:128", "software": "megatron-2024"}),
    "fp8": ("preset:llama3-70b", (), {"cluster": "dgx-h100:128", "gemm_dtype": "fp8", "context_bytes": "2G"}),
    "money and failures": (
        "preset:llama3-70b",
        (),
        {"cluster": "dgx-h100:128", "tokens": "1T", "price": "2.5", "failure_hours": "50k", "checkpoint_seconds": "30"},
    ),
    "a run file": ("run.toml", ("layout.pp=2", "layout.dp_shard=2", "layout.zero=1"), {"cluster": "dgx-h100"}),
    "an automatic layout": ("run.toml", ("layout=auto",), {"cluster": "dgx-h100:4"}),
    "a measured machine": ("run.toml", ("layout.dp_shard=2",), {"cluster": "machine.toml"}),
}
PLANNED = {
    "a model": (
        None,
        (),
        {"model": "llama3-8b", "cluster": "dgx-h100:16", "sequence_length": "8k", "batch_sequences": 64, "keep": 3},
    ),
    "a run file": ("run.toml", ("precision.compute=bf16",), {"cluster": "dgx-h100:4"}),
    "an explanation": ("run.toml", (), {"cluster": "dgx-h100:4", "explain": ["tp=2"], "dtype": "bf16"}),
    "fewer devices": (
        "run.toml",
        (),
        {"cluster": "dgx-h100:8", "objective": "devices", "tokens": "1G", "deadline_days": 90.0},
    ),
    "nothing fits": ("preset:llama3-70b", (), {"cluster": "dgx-h100:8", "budget": 2.0}),
}

LARGE = {"a preset on its own cluster", "another cluster", "overrides", "software", "a model"}
"""Cases that are only larger than others; `make test-rest` runs them."""


@pytest.fixture
def machine(here: Path) -> None:
    (here / "machine.toml").write_text(tomli_w.dumps(cluster()))


def options(arguments: dict) -> list[str]:
    return [
        word
        for name, value in arguments.items()
        for each in (value if isinstance(value, list) else [value])
        for word in (f"--{name.replace('_', '-')}", str(each))
    ]


def printed(result) -> dict:
    assert result.code in (0, 1), result.err
    return json.loads(result.out)


def same(document: dict) -> dict:
    """The document as it is after a file; without the wall clock of a search."""
    return {key: each for key, each in json.loads(json.dumps(document)).items() if key != "search_seconds"}


@pytest.mark.parametrize("case", others_are_rest(SIMULATED, SIMULATED.keys() - LARGE))
def test_simulate(case: str, fourfold, machine) -> None:
    run, overrides, arguments = SIMULATED[case]
    document = printed(fourfold("simulate", run, *overrides, *options(arguments), "--json"))
    result = ff.simulate(run, overrides, **arguments)
    assert same(result.to_json()) == document
    assert (result.step_seconds, result.mfu, result.fits) == tuple(document[k] for k in ("step_seconds", "mfu", "fits"))
    assert result.memory_bytes == max(rank["device_bytes"] for rank in document["memory"])


def test_simulate_with_memory_over_time(fourfold) -> None:
    command = fourfold("simulate", "run.toml", "--cluster", "dgx-h100:8", "--memory", "--json")
    assert same(ff.simulate("run.toml", cluster="dgx-h100:8").to_json(memory_curves=True)) == printed(command)


@pytest.mark.parametrize("case", others_are_rest(PLANNED, PLANNED.keys() - LARGE))
def test_plan(case: str, fourfold, here: Path) -> None:
    run, overrides, arguments = PLANNED[case]
    command = fourfold("plan", *([run] if run else []), *overrides, *options(arguments), "--json")
    result = ff.plan(run, overrides, **arguments)
    assert same(result.to_json()) == same(printed(command))
    assert (result.best is not None) == (command.code == 0)


def test_a_planned_run_is_the_file_that_the_command_writes(fourfold, here: Path) -> None:
    result = ff.plan("run.toml", cluster="dgx-h100:4")
    fourfold("plan", "run.toml", "--cluster", "dgx-h100:4", "--out", "planned.toml")
    step = ff.simulate(result.run())
    assert step.step_seconds == ff.simulate("planned.toml").step_seconds == result.best.seconds
    assert step.memory_bytes == result.best.memory_bytes
    second = result.layouts[1]
    assert ff.simulate(result.run(second)).step_seconds == pytest.approx(second.seconds, rel=1e-9)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_show(kind: str, fourfold) -> None:
    overrides = ("layout.pp=2", "layout.dp_shard=2", "layout.zero=3")
    evaluate = ["--evaluate"] if kind == "evaluate" else []
    program = ff.Program.of("run.toml", overrides, kind=kind)
    for pp_rank in (0, 1):
        asked = ("show", "run.toml", *overrides, "--pp-rank", str(pp_rank), *evaluate)
        assert same(program.to_json(pp_rank)) == printed(fourfold(*asked, "--json"))
        text = fourfold(*asked, "--full").out
        assert text.startswith(program.text(pp_rank))


def test_verify(fourfold) -> None:
    asked = ("preset:mixtral-8x22b-256", "layout.pp=2")
    command = fourfold("show", *asked, "--cluster", "dgx-h100:256", "--verify", "--json")
    result = ff.verify(asked[0], asked[1:], cluster="dgx-h100:256")
    assert same(result.to_json()) == printed(command)
    assert result.sound is printed(command)["sound"] is True
