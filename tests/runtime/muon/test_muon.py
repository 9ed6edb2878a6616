"""Muon where ranks have pieces of matrices, and where matrices have owner ranks: parity, bytes, memory."""

from itertools import product
from typing import Any, get_args

import pytest

from fourfold.config.optimizers import MuonSection
from fourfold.layout import flat_layouts
from fourfold.program import Op, lower_step, rank_view
from fourfold.program.muon.matrices import Matrix, hidden_matrices
from fourfold.program.muon.owners import placement, share_of, share_out
from fourfold.program.muon.rows import MuonOp
from fourfold.program.spec import Transport
from tests.support.grid import others_are_rest
from tests.support.parity_check import check_split
from tests.support.parity_ranks import prepare_rank, run_rank
from tests.support.parity_runs import DEEPSEEK_V3, MIXTRAL, run_table
from tests.support.programs import QWEN3_MOE, make_spec
from tests.support.ranks import run_on_ranks
from tests.support.reference_optimizers import REFERENCES

pytestmark = pytest.mark.grid(1)

STATED = {"name": "muon", "lr": 0.05, **REFERENCES["muon"].settings}
Case = tuple[int, dict[str, Any], dict[str, Any]]
SPLITS: dict[str, Case] = {
    "tp": (4, {"dp_shard": 2, "tp": 2, "microbatch_sequences": 3}, {}),
    "tp-sp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True, "microbatch_sequences": 3}, {}),
    "tp-cp": (4, {"cp": 2, "tp": 2, "microbatch_sequences": 6}, {}),
    "tp-ep": (4, {"dp_shard": 2, "tp": 2, "ep": 2, "microbatch_sequences": 3}, MIXTRAL),
    "etp": (4, {"dp_shard": 4, "etp": 2, "microbatch_sequences": 3}, MIXTRAL),
}


@pytest.mark.parametrize(("zero", "split"), list(product(range(4), SPLITS)))
def test_split_matrices_are_updated_in_full(zero: int, split: str) -> None:
    """Owner ranks and shards in turns."""
    ranks, layout, model = SPLITS[split]
    chosen = "owner" if (zero + list(SPLITS).index(split)) % 2 else "shard"
    check_split(ranks, layout={**layout, "zero": zero}, model=model, optimizer={**STATED, "placement": chosen})


MORE: dict[str, Case] = {
    "hsdp-tp": (8, {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "zero": 3, "microbatch_sequences": 3}, {}),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2, "zero": 1, "microbatch_sequences": 3}, {}),
    "pp-tp": (4, {"pp": 2, "tp": 2, "microbatch_sequences": 6}, {"tie_embeddings": True}),
    "key-value-copies": (4, {"tp": 4, "sequence_parallel": True, "microbatch_sequences": 6}, {}),
    "ep-etp": (8, {"dp_shard": 4, "tp": 2, "ep": 2, "etp": 2, "zero": 2, "microbatch_sequences": 3}, MIXTRAL),
    "mla": (4, {"dp_shard": 2, "tp": 2, "zero": 1, "microbatch_sequences": 3}, DEEPSEEK_V3),
    "replicas": (3, {"dp_replicate": 3, "zero": 0, "microbatch_sequences": 2}, {}),
}


@pytest.mark.parametrize(
    "case",
    others_are_rest(MORE, ("hsdp", "pp-tp", "ep-etp")),
)
def test_owner_ranks_compute_what_shards_would(case: str) -> None:
    ranks, layout, model = MORE[case]
    optimizer = {**STATED, "placement": "owner", "adjust_lr": "match_rms_adamw", "nesterov": False}
    check_split(ranks, layout=layout, model=model, optimizer=optimizer)


@pytest.mark.parametrize("chosen", ["shard", "owner"])
@pytest.mark.parametrize("tp", [1, 2])
def test_up_projections_head_by_head(tp: int, chosen: str) -> None:
    layout = {"dp_shard": 2, "tp": tp, "zero": 2, "microbatch_sequences": 3}
    check_split(2 * tp, layout=layout, model=DEEPSEEK_V3, optimizer={**STATED, "per_head": True, "placement": chosen})


MODEL = {
    **{"num_layers": 6, "hidden_size": 192, "num_heads": 6, "num_kv_heads": 2, "head_dim": 32, "ffn_size": 512},
    "vocab_size": 2048,
}


@pytest.mark.parametrize("chosen", ["shard", "owner"])
@pytest.mark.parametrize(
    "layout",
    [{"tp": 2}, {"dp_replicate": 2, "zero": 0}, {"tp": 2, "dp_shard": 2, "zero": 1}, {"tp": 2, "cp": 2, "zero": 3}],
    ids=str,
)
def test_the_peak_is_the_declared(layout: dict[str, Any], chosen: str) -> None:
    ranks = layout.get("tp", 1) * layout.get("dp_shard", 1) * layout.get("dp_replicate", 1) * layout.get("cp", 1)
    table = run_table(
        model=MODEL,
        batch={"global_sequences": 4, "sequence_length": 32, "steps": 1},
        layout={**layout, "microbatch_sequences": 2},
        precision={"compute": "fp32"},
        optimizer={**STATED, "placement": chosen},
    )
    results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks, track_memory=True)
    highest = max(result["peak"] for result in results)  # of the owner rank of the largest matrices
    assert abs(results[0]["predicted_peak"] / highest - 1) < 0.005


def _unit(name: str, **layout: Any) -> tuple[Any, Any]:
    spec = make_spec(optimizer={"name": "muon", **layout.pop("optimizer", {})}, **layout)
    return spec, flat_layouts(spec.segments, spec.layout)[name]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("b0", {"dp_shard": 4, "tp": 2, "zero": 0}),
        ("b0", {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "zero": 2}),
        ("b0.experts", {"model": QWEN3_MOE, "dp_shard": 4, "ep": 2, "etp": 2, "zero": 1}),
    ],
)
def test_every_matrix_has_one_owner_and_everyone_finds_it(name: str, layout: dict[str, Any]) -> None:
    spec, flat = _unit(name, **layout, optimizer={"placement": "owner"})
    matrices, plan = hidden_matrices(spec, flat), placement(spec, flat)
    for first in range(spec.layout.world_size):
        members = spec.layout.group_of(first, plan.owners)
        shares = {rank: share_of(spec, flat, rank) for rank in members}
        computed = [matrix for share in shares.values() for matrix, _ in share.own]
        assert len(computed) == len(set(computed))
        found = {
            matrix: members.index(rank) * plan.slot + place
            for rank, share in shares.items()
            for matrix, place in share.own
        }
        for share in shares.values():
            assert dict(share.places) == found
            assert {part.matrix for part in share.held} <= set(found)
        if not flat.zero:
            assert set(computed) == set(matrices)


def test_owner_ranks_have_even_work() -> None:
    """Graham 1969: longest first is within 4/3 - 1/(3n) of the best, which is no less than the mean."""
    matrices = tuple(Matrix(i, rows, 64) for i, rows in enumerate((64, 64, 64, 64, 192, 192, 192, 16, 16)))
    loads = [sum(min(m.rows, 64) ** 2 * max(m.rows, 64) for m in given) for given in share_out(matrices, 3, "fp32")]
    assert max(loads) <= (4 / 3 - 1 / 9) * sum(loads) / 3


@pytest.mark.parametrize("transport", get_args(Transport))
def test_owner_ranks_are_taken_where_they_save_more_than_they_send(transport: Any) -> None:
    """An iteration on an [n, n] matrix computes some 30 n^3 and sends n^2: large matrices travel."""
    hidden = {"exchange": {8: False, 256: True}, "native": {256: False, 4096: True}}[transport]
    for size, taken in hidden.items():
        model = {"hidden_size": size, "ffn_size": size, "num_heads": 2, "num_kv_heads": 2, "head_dim": size // 2}
        spec, flat = _unit("b0", model=model, dp_shard=2, zero=0, transport=transport, precision={"compute": "bf16"})
        assert bool(placement(spec, flat).owners) == taken


def test_under_zero_0_a_rank_computes_its_share() -> None:
    """Every rank has all directions: the block's matmuls are divided by the ranks, and no direction travels."""
    works = {}
    for chosen in ("shard", "owner"):
        spec = make_spec(dp_shard=2, zero=0, optimizer={"name": "muon", "placement": chosen})
        program = lower_step(rank_view(spec))
        works[chosen] = [s.flops for s in program.instructions if s.op in (Op.UPDATE, MuonOp.ORTHOGONALIZE)]
        assert not any(s.op is MuonOp.ALL_GATHER_DIRECTIONS for s in program.instructions)
    assert sum(works["owner"]) < 0.6 * sum(works["shard"])


def test_keys_reach_the_step() -> None:
    section = MuonSection(name="muon", per_head=True, placement="owner")
    assert (section.step_spec.per_head, section.step_spec.placement) == (True, "owner")
    _, view = prepare_rank(0, run_table(optimizer={**STATED, "placement": "shard"}, model=DEEPSEEK_V3), 1)
    assert view.spec.optimizer.placement == "shard"
