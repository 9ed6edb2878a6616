"""Predicted over measured peak memory of a step on every rank."""

from typing import Any

from fourfold.program import lower_step
from tests.support.parity_ranks import prepare_rank, run_rank
from tests.support.ranks import run_on_ranks


def peak_errors(ranks: int, table: dict[str, Any]) -> list[float]:
    """Every rank's predicted over measured - 1, of the peak above the memory before and after the step."""
    results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks, track_memory=True)
    errors = []
    for rank, result in enumerate(results):
        program = lower_step(prepare_rank(rank, table, ranks)[1])
        resident = sum(program.buffers[name] for name in program.resident)
        errors.append((result["predicted_peak"] - resident) / (result["peak"] - resident) - 1)
    return errors


def check_peaks(ranks: int, table: dict[str, Any], tolerance: float) -> None:
    """Every rank's peak is the predicted one. With Muon that is the peak of the rank of each stage that has most matrices: a stage
    has one program, and its ranks not as many matrices each."""
    errors = peak_errors(ranks, table)
    told = f"predicted over measured, rank by rank: {errors}"
    assert min(errors) > -tolerance, told
    if table.get("optimizer", {}).get("name") != "muon":
        assert max(errors) < tolerance, told
        return
    layout = prepare_rank(0, table, ranks)[1].spec.layout
    stages: dict[int, list[float]] = {}
    for rank, error in enumerate(errors):
        stages.setdefault(layout.coordinates(rank)["pp"], []).append(error)
    assert all(min(each) < tolerance for each in stages.values()), told
