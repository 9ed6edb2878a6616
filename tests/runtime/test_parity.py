"""Every layout gives the gradients and the parameters of one process that uses none of the runtime."""

import functools
import json

import pytest

from tests.support.parity import assemble, reference, run_rank, run_table, worst
from tests.support.ranks import run_on_ranks

MESHES = [(1, 1), (1, 2), (1, 4), (2, 2)]


@functools.cache
def _reference(key: str):
    return reference(json.loads(key))


def _check(ranks: int, tolerance: float, **sections) -> None:
    table = run_table(**sections)
    expected = _reference(json.dumps({**table, "layout": {}}, sort_keys=True))
    results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks)
    for result in results:
        assert result["sent"] == result["declared"], "bytes counted differ from bytes declared"
        assert result["losses"] == pytest.approx(expected.losses, rel=tolerance)
        assert result["norms"] == pytest.approx(expected.norms, rel=tolerance)
    for key in ("gradients", "parameters"):
        error, name = worst(assemble(table, results, key, ranks), getattr(expected, key))
        assert error < tolerance, f"{key} of {name}: relative error {error:.2e}"


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize(("compute", "tolerance"), [("fp64", 1e-9), ("fp32", 1e-5)])
def test_parity(mesh, zero, accumulation, recompute, compute, tolerance) -> None:
    ranks = mesh[0] * mesh[1]
    layout = {
        "dp_replicate": mesh[0],
        "dp_shard": mesh[1],
        "zero": zero,
        "microbatch_sequences": 12 // ranks // accumulation,
        "recompute": recompute,
    }
    _check(ranks, tolerance, layout=layout, precision={"compute": compute})
