"""Every layout gives the gradients and the parameters of one process that uses none of the runtime."""

import pytest

from tests.support.parity_check import check_parity

sweep = pytest.mark.sweep
MESHES = [(1, 1), (1, 2), (1, 4), (2, 2)]


@pytest.mark.parametrize("recompute", ["full", pytest.param("none", marks=sweep)])
@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=sweep), 3])
@pytest.mark.grid(1)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize(("compute", "tolerance"), [("fp64", 1e-9), pytest.param("fp32", 1e-5, marks=sweep)])
def test_parity(mesh, zero, accumulation, recompute, compute, tolerance) -> None:
    ranks = mesh[0] * mesh[1]
    layout = {
        "dp_replicate": mesh[0],
        "dp_shard": mesh[1],
        "zero": zero,
        "microbatch_sequences": 12 // ranks // accumulation,
        "recompute": recompute,
    }
    check_parity(ranks, tolerance, layout=layout, precision={"compute": compute})
