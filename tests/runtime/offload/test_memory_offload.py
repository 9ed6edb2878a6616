"""Peaks with offload: of the device and of its host's memory, predicted by the program's buffers and measured in its execution."""

from typing import Any

import pytest

from tests.runtime.test_memory import MODEL
from tests.support.parity_ranks import run_rank
from tests.support.parity_runs import QWEN3_MOE, run_table
from tests.support.ranks import run_on_ranks

pytestmark = pytest.mark.grid(1)

sweep = pytest.mark.sweep
TIGHT = 0.01
ROUTED = 0.12
"""With a router, which decides how many rows an expert gets, as in `test_memory`."""


def _run(ranks: int, layout: dict[str, Any], **sections: dict[str, Any]) -> list[dict[str, Any]]:
    table = run_table(
        model={**MODEL, "vocab_size": 256, **sections.pop("model", {})},
        batch={"global_sequences": 8, "sequence_length": 128, "steps": 1},
        layout={"microbatch_sequences": 2, **layout},
        precision={"compute": "fp32", **sections.pop("precision", {})},
        **sections,
    )
    return run_on_ranks(ranks, run_rank, table=table, ranks=ranks, track_memory=True)


def _check(ranks: int, layout: dict[str, Any], tolerance: float = TIGHT, **sections: Any) -> list[dict[str, Any]]:
    results = _run(ranks, layout, **{name: dict(values) for name, values in sections.items()})
    errors = [r[f"predicted_{what}"] / r[what] - 1 for r in results for what in ("peak", "host_peak") if r[what]]
    assert max(map(abs, errors)) < tolerance, f"predicted over measured: {errors}"
    return results


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (1, {"offload": "activations"}),
        (1, {"offload": "activations:3", "recompute": "selective"}),
        (2, {"dp_shard": 2, "zero": 3, "offload": "activations", "prefetch": 2}),
        (2, {"pp": 2, "offload": "activations"}),
        (2, {"tp": 2, "sequence_parallel": True, "offload": "activations"}),
        pytest.param(2, {"cp": 2, "offload": "activations"}, marks=sweep),
        pytest.param(2, {"pp": 2, "schedule": "zb_h1", "offload": "activations"}, marks=sweep),
        (1, {"offload_optimizer": True}),
        (2, {"dp_shard": 2, "zero": 1, "offload_optimizer": True}),
        pytest.param(2, {"dp_shard": 2, "zero": 3, "offload_optimizer": True, "offload": "activations"}, marks=sweep),
    ],
)
def test_predicted_peaks_are_the_measured_ones(ranks: int, layout: dict[str, Any]) -> None:
    assert all(result["host_peak"] for result in _check(ranks, layout))


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=sweep)])
def test_master_copies(optimizer: str) -> None:
    _check(
        2,
        {"dp_shard": 2, "zero": 2, "offload_optimizer": True},
        precision={"compute": "bf16"},
        optimizer={"name": optimizer},
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_experts(overlap: bool) -> None:
    layout = {"dp_shard": 2, "ep": 2, "offload": "activations", "overlap_experts": overlap}
    _check(2, layout, ROUTED, model={**QWEN3_MOE, "moe_ffn_size": 128})


def test_what_is_offloaded_is_not_on_the_device() -> None:
    """The activations of twelve blocks but those of the last few, and the optimizer states of all units but those of two."""
    model = {"num_layers": 12, "vocab_size": 64}
    (plain,) = _run(1, {"microbatch_sequences": 4}, model=model)
    (away,) = _check(1, {"offload": "activations", "microbatch_sequences": 4}, model=model)
    assert away["peak"] < plain["peak"] - 0.8 * away["host_peak"]
    (states,) = _check(1, {"offload_optimizer": True, "microbatch_sequences": 4}, model=model)
    assert states["peak"] < plain["peak"] - 0.99 * states["host_peak"]
