"""A job knows its hosts, its steps and its vocabulary; a script stops until it is told what only a person knows."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fourfold.config import ModelSection
from fourfold.config.run_file import parse_run
from fourfold.export import EXPORTS
from fourfold.export.job import TrainerJob
from fourfold.export.megatron import stage_text
from fourfold.export.script import flag_texts, number
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.plan.request import Request
from tests.export.cases import DEFAULT, asked, job
from tests.export.launched import INPUTS, NODE
from tests.export.megatron_rules import unrolled
from tests.plan.test_bounds import DENSE


@pytest.mark.parametrize(
    ("cluster", "nodes", "devices"),
    [
        ("dgx-h100:64", 8, 8),
        ("dgx-h100:8", 1, 8),
        ("dgx-h100:4", 1, 4),
        ("gb200-nvl72:72", 18, 4),
        ("dgx-2-v100:16", 1, 16),
    ],
)
def test_processes_are_started_on_every_host(cluster: str, nodes: int, devices: int) -> None:
    request = Request.of(resolve_model(ModelSection(**DENSE)), load_cluster(cluster), 2048, 72 * 64)
    found = TrainerJob(request, DEFAULT)
    assert (found.nodes, found.node_devices) == (nodes, devices)


@pytest.mark.parametrize(
    ("batch", "steps", "tenth"),
    [({"steps": 500}, 500, 50), ({"tokens": 100_000_000}, 1018, 102), ({}, None, "$((STEPS * 100 / 1000))")],
)
def test_steps_are_the_run_s(batch: dict, steps: int | None, tenth: int | str) -> None:
    run = parse_run({"batch": {"global_sequences": 48, "sequence_length": 2048, **batch}})
    found = TrainerJob(asked("dense", 4), DEFAULT, run)
    assert found.steps == steps, "100M tokens in steps of 48 x 2,048"
    assert found.share_of_steps() == (steps or "$STEPS")
    assert found.share_of_steps(0.1) == tenth


@pytest.mark.parametrize("trainer", EXPORTS)
@pytest.mark.parametrize("missing", ["DATA", "TOKENIZER", "STEPS"])
def test_a_script_stops_until_it_is_told(trainer: str, missing: str, tmp_path: Path) -> None:
    text = EXPORTS[trainer](job("dense", {})).text
    known = {name: value for name, value in (INPUTS | NODE).items() if name != missing}
    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", **known}, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert f"{missing}: " in done.stderr
    assert not list(tmp_path.iterdir()), "before it writes anything"


@pytest.mark.parametrize("trainer", EXPORTS)
def test_a_run_of_known_length_asks_for_no_steps(trainer: str) -> None:
    run = parse_run({"batch": {"global_sequences": 48, "sequence_length": 2048, "steps": 500}})
    text = EXPORTS[trainer](replace(job("dense", {}), run=run)).text
    assert "STEPS" not in text
    assert "500" in text


@pytest.mark.parametrize(
    ("stages", "text"),
    [
        (("Ettt", "tttL"), "Et*3|t*3L"),
        (("Et", "tt", "tt", "tt", "tmL"), "Et|(t*2|)*3tmL"),
        (("E", "t", "t", "L"), "E|(t|)*2L"),
    ],
)
def test_equal_stages_are_written_once(stages: tuple[str, ...], text: str) -> None:
    assert stage_text(stages) == text
    assert tuple(unrolled(text)) == stages


def test_values_are_quoted_for_the_shell() -> None:
    flags = {"switch": True, "list": [1, 2], "pattern": "([0]*3)", "input": "$DATA", "rate": 3e-5}
    assert flag_texts(flags) == ["--switch", "--list 1 2", "--pattern '([0]*3)'", '--input "$DATA"', "--rate 3e-05"]
    assert [number(each) for each in (0.1, 500000.0, 3e-4 * 0.1)] == ["0.1", "500000", "3e-05"]
