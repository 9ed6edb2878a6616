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
    errors = peak_errors(ranks, table)
    assert max(map(abs, errors)) < tolerance, f"predicted over measured, rank by rank: {errors}"
