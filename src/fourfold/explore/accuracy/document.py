"""The documents of the accuracy page: all published runs that ship, and one as a set-up with the engine's prediction for it.

Measured and predicted figures are those of `evidence/published_runs.json`; set-ups and the null model's figures in `setups.json`
(`benchmarks/published/fit_setups.py`)."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fourfold.api.simulation import simulate
from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.evidence import PublishedRun, published_runs
from fourfold.explore.setup import body_of, read_setup, texts_of_keys
from fourfold.results.record import record

SETUPS = Path(__file__).with_name("setups.json")


@record
class AccuracyRow:
    """A published run. `step_seconds`, `memory_bytes`: as measured. `null_step_seconds`: by one constant share of the peak for each
    device and `gemm_dtype`, fitted on these very runs. `opens`: whether the page can state its set-up."""

    id: str
    source: str
    model: str
    kind: Literal["dense", "experts"]
    layout: str
    device: str
    devices: int
    software: str
    gemm_dtype: str
    sequence_length: int
    step_seconds: float
    predicted_step_seconds: float
    null_step_seconds: float
    memory_bytes: float | None
    predicted_memory_bytes: float | None
    opens: bool


@record
class AccuracyDocument:
    """All published runs that ship."""

    runs: list[AccuracyRow]


@record
class AccuracyRunDocument:
    """A published run as a set-up. `keys`: as an address has them, empty where the page cannot state it; `unsaid`: what they cannot
    say of the run. `step_seconds`, `memory_bytes`: what the engine predicts for the set-up, of the fullest device; None where there
    is none."""

    id: str
    keys: dict[str, str]
    unsaid: list[str]
    step_seconds: float | None
    memory_bytes: float | None


@lru_cache(maxsize=1)
def setups() -> dict[str, dict[str, Any]]:
    """By run: `device_flops`, `keys`, `unsaid`, `null_step_seconds`."""
    return dict(json.loads(SETUPS.read_text(encoding="utf-8")))


def accuracy_document() -> dict[str, Any]:
    """`AccuracyDocument`."""
    return {"runs": list(map(_row, published_runs()))}


def _row(run: PublishedRun) -> dict[str, Any]:
    shape = run.shape
    own = (
        "id",
        "source",
        "model",
        "layout",
        "step_seconds",
        "predicted_step_seconds",
        "memory_bytes",
        "predicted_memory_bytes",
    )
    shaped = ("device", "devices", "software", "gemm_dtype", "sequence_length")
    return {
        **{name: getattr(run, name) for name in own},
        **{name: getattr(shape, name) for name in shaped},
        "kind": "experts" if shape.active_parameters < shape.parameters else "dense",
        "null_step_seconds": setups()[run.id]["null_step_seconds"],
        "opens": setups()[run.id]["keys"] is not None,
    }


def accuracy_run(name: str) -> dict[str, Any]:
    """`AccuracyRunDocument`. Raises `UserError` for a run that there is none of."""
    if name not in setups():
        raise UserError(f"id = {shortened(name)}: there is no such run; what works: {next(iter(setups()))}")
    keys, unsaid = setups()[name]["keys"], setups()[name]["unsaid"]
    if keys is None:
        return {"id": name, "keys": {}, "unsaid": unsaid, "step_seconds": None, "memory_bytes": None}
    setup = read_setup(body_of(keys))
    found = simulate(setup.run_input, setup.stated, **setup.options)
    return {
        "id": name,
        "keys": texts_of_keys(keys),
        "unsaid": unsaid,
        "step_seconds": found.step_seconds,
        "memory_bytes": float(max(found.summary.step.device_bytes)),
    }
