"""Low-precision matmuls under every way to split a model: the losses, gradients and parameters of one rank, in fp64."""

from typing import Any

import pytest

from fourfold.config import UserError
from tests.support.grid import others_are_rest
from tests.support.parity_check import check_bytes
from tests.support.parity_ranks import assemble, prepare_rank, run_rank, worst
from tests.support.parity_runs import MIXTRAL, run_table
from tests.support.ranks import run_on_ranks

pytestmark = pytest.mark.grid(1)

DIMENSIONS = {"hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "ffn_size": 128, "vocab_size": 96}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "zero 0": (2, {"dp_shard": 2}),
    "zero 1": (2, {"dp_shard": 2, "zero": 1}),
    "zero 2": (2, {"dp_shard": 2, "zero": 2, "microbatch_sequences": 2}),
    "zero 3, recompute": (2, {"dp_shard": 2, "zero": 3, "recompute": "selective"}),
    "pipeline": (2, {"pp": 2, "schedule": "zb_h1"}),
    "tensor": (2, {"tp": 2}),
    "sequence": (2, {"tp": 2, "sequence_parallel": True}),
    "ring": (2, {"cp": 2}),
    "ring, documents": (2, {"cp": 2}),
    "ulysses": (2, {"cp": 2, "cp_method": "ulysses"}),
    "tensor, ring, zero 3": (4, {"tp": 2, "cp": 2, "zero": 3}),
    "experts": (2, {"dp_shard": 2, "ep": 2, "zero": 1}),
}
LARGE = {"hidden_size": 128, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64, "ffn_size": 256, "num_layers": 2}
"""Features of which every rank of two has a multiple of 128."""
SCALED = ("zero 2", "zero 3, recompute", "pipeline", "tensor", "sequence", "ring, documents", "tensor, ring, zero 3")
RECIPES = [
    *(("mxfp8", name) for name in LAYOUTS),
    *(("fp8", name) for name in (*SCALED, "ulysses", "experts")),
    *(("fp8-block", name) for name in SCALED),
]


def _table(layout: dict[str, Any], experts: bool, documents: bool = False, **precision: str) -> dict[str, Any]:
    large = precision.get("gemm_dtype") == "fp8-block"
    model = {**(LARGE if large else DIMENSIONS), **({**MIXTRAL, "moe_ffn_size": 64} if experts else {})}
    return run_table(
        model=model,
        batch={"global_sequences": 4, "sequence_length": 512 if large else 128, "steps": 2},
        layout=layout,
        data={"document_mask": documents},
        precision={"compute": "fp64", "gemm_dtype": "mxfp8", **precision},
    )


QUICK = {
    *(("mxfp8", name) for name in ("zero 2", "tensor, ring, zero 3", "experts")),
    *(("fp8", name) for name in ("pipeline", "sequence", "ring, documents")),
    ("fp8-block", "zero 3, recompute"),
}


@pytest.mark.parametrize(("recipe", "name"), others_are_rest(RECIPES, QUICK))
def test_every_layout_rounds_the_same_numbers_together(recipe: str, name: str) -> None:
    """One scale a tensor is that of a microbatch, so that one rank has microbatches of the same size."""
    ranks, layout = LAYOUTS[name]
    kind = name == "experts", name.endswith("documents")
    alike = {"microbatch_sequences": layout.get("microbatch_sequences", 1)} if recipe == "fp8" else {}
    single, split = (_table(each, *kind, gemm_dtype=recipe) for each in (alike, layout))
    (alone,) = expected = run_on_ranks(1, run_rank, table=single, ranks=1)
    results = run_on_ranks(ranks, run_rank, table=split, ranks=ranks)
    check_bytes(split, results)
    for result in results:
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        assert result["norms"] == pytest.approx(alone["norms"], rel=1e-9)
    for key in ("gradients", "parameters"):
        error, where = worst(assemble(split, results, key, ranks), assemble(single, expected, key, 1))
        assert error < 1e-7, f"{key} of {where} differ by {error}"


def test_rounding_is_felt() -> None:
    """A run without rounding, and one with gradients in E5M2, have other gradients."""
    tables = (_table({}, False), _table({}, False, gemm_gradients="e5m2"), run_table(**_plain()))
    norms = [run_on_ranks(1, run_rank, table=table, ranks=1)[0]["norms"][0] for table in tables]
    assert len(set(norms)) == 3
    assert norms[0] == pytest.approx(norms[2], rel=0.05)


def _plain() -> dict[str, Any]:
    table = _table({}, False)
    del table["precision"]["gemm_dtype"]
    return table


def test_memory_is_as_predicted() -> None:
    """In fp32: fp64 is for proofs, and what rounds it once takes memory that no prediction has."""
    table = _table({}, False, compute="fp32")
    (result,) = run_on_ranks(1, run_rank, table=table, ranks=1, track_memory=True)
    assert result["predicted_peak"] == pytest.approx(result["peak"], rel=1e-4)


@pytest.mark.parametrize(
    ("layout", "part"),
    [({"tp": 4}, "head_dim = 16 is no multiple"), ({"cp": 4}, "= 16 is no multiple"), ({"tp": 8}, "num_heads")],
)
def test_layouts_that_cut_a_block_are_refused(layout: dict[str, Any], part: str) -> None:
    table = _table(layout, False)
    if part.startswith("head_dim"):
        table["model"]["head_dim"] = 16
    with pytest.raises(UserError, match=part):
        prepare_rank(0, table, layout.get("tp", 1) * layout.get("cp", 1))
