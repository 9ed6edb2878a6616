"""`fourfold data`: how often a run reads each source, announced before it reads one too often, and the samples of a step."""

import json

import pytest

from fourfold.config import dump_run, load_run
from fourfold.data.batches import GlobalBatches
from fourfold.data.prepare import prepare
from fourfold.data.weights import MOST_EPOCHS
from fourfold.launch.ready import prepare_run
from fourfold.launch.run_folder import RunFolder

CHANGING = (
    "data.corpus=[{path='texts/0.txt'}, "
    "{path='texts', weight=0.5, later=[{step=20, weight=3.0}, {step=60, weight=0.0, linear=true}]}]",
    "data.validation_every=2",
    "batch.global_sequences=4",
)


@pytest.mark.parametrize("steps", [10, 31, 32, 33, 34, 120])
def test_readings_are_those_of_every_sample_of_the_run(here, steps) -> None:
    config = load_run(here / "run.toml", (*CHANGING, f"batch.steps={steps}"))
    prepared = prepare(config.data, lambda line: None)
    batches = GlobalBatches.of_run(prepared, config)
    every = [(step, sample) for step in range(steps) for sample in batches.samples(step, range(4))]
    for part, reading in enumerate(batches.readings(steps)):
        own = [(step, sample) for step, sample in every if sample.part == part]
        assert reading.share == pytest.approx(len(own) / len(every))
        assert reading.epochs == pytest.approx(len(own) / batches.windows_per_part[part])
        assert reading.step_beyond == next((step for step, sample in own if sample.epoch >= MOST_EPOCHS), None)
        assert (reading.notice(steps) is None) == (reading.step_beyond is None)


def test_a_run_says_at_its_start_from_which_step_it_reads_a_source_too_often(fourfold, here) -> None:
    run = ("run.toml", *CHANGING, "batch.steps=120")
    config = load_run(here / "run.toml", run[1:])
    ready = prepare_run(config, 1, RunFolder(here / "out"), lambda line: None)
    [told] = [line for line in ready.warnings if "epochs" in line]
    readings = GlobalBatches.of_run(ready.prepared[0], config).readings(120)
    assert [each.step_beyond is not None for each in readings] == [True, False]
    assert (
        f"'texts/0.txt': the run reads it {readings[0].epochs:.2f} times in 120 steps, more than 4 epochs from step"
        in told
    )
    assert f"step {readings[0].step_beyond:,} on" in told
    short = load_run(here / "run.toml", (*CHANGING, "batch.steps=2"))
    warnings = prepare_run(short, 1, RunFolder(here / "out"), lambda line: None).warnings
    assert not any("epochs" in line for line in warnings)
    shown = fourfold("data", *run)
    assert told.removeprefix("warning: ") in shown.out
    for each in readings:
        assert f"{100 * each.share:.1f} % of the samples, read {each.epochs:.2f} times in 120 steps" in shown.out
    parts = json.loads(fourfold("data", *run, "--json").out)["parts"]
    assert [(part["epochs"], part["step_beyond_4_epochs"]) for part in parts] == [
        (each.epochs, each.step_beyond) for each in readings
    ]


def test_data_of_a_run_without_a_length_or_too_long_a_sequence_has_no_epochs(fourfold, here) -> None:
    (here / "short.toml").write_text((here / "run.toml").read_text().replace("steps = 3", ""))
    for arguments in (("short.toml",), ("run.toml", "batch.sequence_length=100000")):
        assert "times in" not in fourfold("data", *arguments).out
        assert json.loads(fourfold("data", *arguments, "--json").out)["parts"][0]["epochs"] is None


def test_samples_of_a_step_are_printed_from_a_run_file_and_from_a_folder(fourfold, here) -> None:
    config = load_run(here / "run.toml")
    prepared = prepare(config.data, lambda line: None)
    RunFolder(here / "run").write(config, {"prepared": str(prepared.path)})
    tokens = GlobalBatches.of_run(prepared, config).batch(2, range(12)).tokens
    for run in ("run.toml", "run"):
        printed = json.loads(fourfold("data", run, "--step", "2", "--json").out)
        assert [row["tokens"] for row in printed["rows"]] == tokens.tolist()
        lines = fourfold("data", run, "--step", "2", "--row", "3").out
        assert "step 2: 1 sequence of 16 tokens" in lines
        assert f"row 3     texts: sample {2 * 12 + 3}, epoch 0" in lines
        assert ".txt, record 1, from its token" in lines


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("run.toml", "--step", "3"), "--step 3: allowed: 0 to 2"),
        (("run.toml", "--step", "-1"), "--step -1: allowed: 0 to 2"),
        (("run.toml", "--step", "0", "--row", "12"), "--row 12: allowed: 0 to 11"),
        (("run.toml", "--row", "1"), "what works: --step 0 --row 1"),
        (("texts", "--step", "0"), "holds no run.toml"),
        (("run", "data.eos=3"), "run is the folder of a run"),
    ],
)
def test_what_a_run_has_not_is_refused(fourfold, here, arguments, named) -> None:
    (here / "run").mkdir()
    (here / "run" / "run.toml").write_text(dump_run(load_run(here / "run.toml")))
    result = fourfold("data", *arguments)
    assert result.code == 2
    assert named in result.err
    assert "Traceback" not in result.err


def test_validation_sets_are_prepared_and_counted(fourfold, here) -> None:
    run = ("run.toml", "run.validation=[{name='numbers', corpus='texts/1.txt'}]")
    assert "validation set    numbers: 1 documents of texts/1.txt, 931 tokens" in fourfold("data", *run).out
    [found] = json.loads(fourfold("data", *run, "--json").out)["validation_sets"]
    assert found == {"name": "numbers", "corpus": "texts/1.txt", "documents": 1, "tokens": 31 * 30 + 1}
