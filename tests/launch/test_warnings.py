"""The lines that a run says before it trains."""

from pathlib import Path
from typing import Any

import pytest

from fourfold.config import ModelConfig, RunConfig, parse_run
from fourfold.config.learning_rate import learning_rate
from fourfold.huggingface import resolve_model
from fourfold.launch.machine import device_memory_bytes
from fourfold.launch.warnings import memory_line, warnings_of
from tests.support.programs import DIMENSIONS, MIXTRAL

CAPACITY = {**MIXTRAL, "capacity_factor": 1.0}


def _run(steps: int = 12, model: dict[str, Any] | None = None, **optimizer: Any) -> tuple[RunConfig, ModelConfig]:
    table = {
        "model": {**DIMENSIONS, **(model or {})},
        "batch": {"global_sequences": 4, "sequence_length": 16, "steps": steps},
        "optimizer": {"schedule": "wsd", **optimizer},
    }
    config = parse_run(table)
    return config, resolve_model(config.model)


def test_a_capacity_makes_losses_depend_on_the_layout() -> None:
    assert warnings_of(*_run(), None, 0) == ()
    (line,) = warnings_of(*_run(model=CAPACITY), None, 0)
    assert "model.capacity_factor = 1" in line
    assert "losses depend on the layout" in line


def test_a_scale_that_a_microbatch_shares_is_told() -> None:
    config, model = _run()
    for recipe, told in (("fp8", 1), ("mxfp8", 0), ("fp8-block", 0), (None, 0)):
        precision = config.precision.model_copy(update={"gemm_dtype": recipe})
        lines = warnings_of(config.model_copy(update={"precision": precision}), model, None, 0)
        assert len(lines) == told
        assert all("layout.microbatch_sequences" in line for line in lines)


@pytest.mark.parametrize("schedule", ["wsd", "cosine"])
def test_a_schedule_that_leads_elsewhere_is_named_with_both_rates(schedule: str) -> None:
    before, _ = _run(12, schedule=schedule)
    now, model = _run(24, schedule=schedule)
    (line,) = warnings_of(now, model, before, 12)
    was, following = learning_rate(before.optimizer, 11, 12), learning_rate(now.optimizer, 12, 24)
    assert f"from {was:.3g} in step 11 to {following:.3g} in step 12" in line
    held, model = _run(24, schedule="constant", lr=float(f"{was:.3g}"))
    assert warnings_of(held, model, before, 12) == (), "the advice that the line gives is followed in silence"


def test_a_run_that_goes_on_as_it_was_says_nothing() -> None:
    before, model = _run(100, warmup_steps=5)
    for step in range(101):
        assert warnings_of(before, model, before, step) == ()
    longer, model = _run(200, warmup_steps=5)
    assert warnings_of(longer, model, before, 40) == (), "before the decay both are at their full rate"
    assert warnings_of(*_run(12), None, 0) == ()


def test_memory_is_compared_with_what_the_machine_has() -> None:
    assert memory_line(10**9, 4, 4 * 10**9, "this machine") == []
    assert memory_line(10**9, 4, None, "this machine") == []
    (line,) = memory_line(10**9, 4, 4 * 10**9 - 1, "this machine")
    assert "4 ranks" in line
    assert "4.00 GB" in line


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("echo 81559; echo 40960", 40960 << 20), ("echo '[N/A]'", None), ("exit 9", None), (None, None)],
)
def test_a_devices_memory_is_what_the_driver_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, expected: int | None
) -> None:
    if answer is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if answer is not None else str(tmp_path))
    assert device_memory_bytes() == expected


def test_a_peak_is_compared_with_the_device() -> None:
    assert memory_line(80 << 30, 1, 80 << 30, "its device") == []
    assert memory_line(80 << 30, 1, None, "its device") == []
    (line,) = memory_line((80 << 30) + 1, 1, 80 << 30, "its device")
    assert "85.90 GB" in line


def test_a_ramp_that_the_run_does_not_come_to_the_end_of_is_told() -> None:
    ramp = [{"global_sequences": 2, "until_steps": 12}]
    _, model = _run()
    for until, told in ((12, 1), (11, 0)):
        batch = {"global_sequences": 4, "sequence_length": 16, "steps": 12, "ramp": [{**ramp[0], "until_steps": until}]}
        found = warnings_of(parse_run({"model": DIMENSIONS, "batch": batch}), model, None, 0)
        assert len(found) == told
        assert all("its last batch has 2 sequences" in line and "batch.global_sequences=2" in line for line in found)


@pytest.mark.parametrize(
    "keys", [{"decay_steps": 8}, {"decay_steps": 20}, {"decay_tokens": 640}, {"decay_fraction": 1.0}], ids=str
)
def test_warmup_and_decay_that_overlap_are_told_with_keys_that_fit(keys: dict[str, Any]) -> None:
    (line,) = warnings_of(*_run(warmup_steps=6, **keys), None, 0)
    assert "overlap" in line
    for works in line.partition("what works: ")[2].split(" (")[0].split(" or "):
        stated = dict(word.removeprefix("optimizer.").split("=") for word in works.split())
        kept = {key: value for key, value in keys.items() if key != "decay_tokens" or "decay_steps" not in stated}
        fitting = {
            **kept,
            "warmup_steps": 6,
            **{key: float(value) if "." in value else int(value) for key, value in stated.items()},
        }
        assert warnings_of(*_run(**fitting), None, 0) == (), works
