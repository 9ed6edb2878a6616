"""One update of all ranks in one process, collectives done by hand: every rank ends with the plain step of full matrices."""

from itertools import product
from typing import Any

import pytest
import torch

from fourfold.config.optimizers import MuonSection
from fourfold.program import RankView
from fourfold.program.muon.owners import placement, share_of
from fourfold.runtime.initialize import fill_range, initialize_shard
from fourfold.runtime.muon import MatrixOptimizer
from fourfold.runtime.units import Unit, build_units, set_storage
from tests.support.grid import others_are_rest
from tests.support.parity_ranks import assemble, prepare_rank
from tests.support.parity_runs import DEEPSEEK_V3, MIXTRAL, run_table
from tests.support.reference_optimizers import plain_orthogonal

CPU = torch.device("cpu")
LR, DECAY, MOMENTUM = 0.05, 0.1, 0.8
GRADIENT = 99
"""The seed of the gradients."""
SPLITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tp": ({"dp_shard": 2, "tp": 2}, {}),
    "tp-cp": ({"cp": 2, "tp": 2, "dp_shard": 2}, {}),
    "key-value-copies": ({"tp": 4, "dp_shard": 2}, {}),
    "hsdp-tp": ({"dp_replicate": 2, "dp_shard": 3, "tp": 2}, {}),
    "tp-ep": ({"dp_shard": 2, "tp": 2, "ep": 2}, MIXTRAL),
    "etp": ({"dp_shard": 4, "etp": 2}, MIXTRAL),
    "ep-etp-replicas": ({"dp_replicate": 2, "dp_shard": 4, "ep": 2, "etp": 2, "tp": 2}, MIXTRAL),
    "mla-by-head": ({"dp_shard": 2, "tp": 2}, DEEPSEEK_V3),
    "biases": ({"dp_shard": 2, "tp": 2}, {"family": "gpt2", "num_kv_heads": 4}),
}


QUICK = {("tp-cp", 0, "owner"), ("ep-etp-replicas", 1, "shard"), ("mla-by-head", 2, "owner"), ("hsdp-tp", 3, "shard")}


@pytest.mark.parametrize(
    ("split", "zero", "chosen"),
    others_are_rest(product(SPLITS, range(4), ("shard", "owner")), QUICK),
)
def test_all_ranks_end_with_the_plain_step(split: str, zero: int, chosen: str) -> None:
    layout, model = SPLITS[split]
    by_head = split == "mla-by-head"
    stated = {"name": "muon", "lr": LR, "weight_decay": DECAY, "momentum": MOMENTUM, "placement": chosen}
    table = run_table(
        model={**model, "vocab_size": 96},
        batch={"global_sequences": 24, "sequence_length": 16},
        layout={**layout, "zero": zero, "microbatch_sequences": 1},
        optimizer={**stated, "per_head": by_head},
    )
    ranks = 1
    for axis in ("dp_replicate", "dp_shard", "cp", "tp"):
        ranks *= layout.get(axis, 1)
    views = [prepare_rank(rank, table, ranks)[1] for rank in range(ranks)]
    section = prepare_rank(0, table, ranks)[0].optimizer
    units = [_units(view, rank, section) for rank, view in enumerate(views)]
    for name in views[0].flats:
        _update(views[0], [each[name] for each in units], section)
    results = [
        {
            "parameters": {name: unit.master.numpy() for name, unit in each.items()},
            "shards": {name: unit.index for name, unit in each.items()},
        }
        for each in units
    ]
    ended = assemble(table, results, "parameters", ranks)
    matrices = [p for s in views[0].spec.segments for unit in s.own for p in unit.matrices]
    assert matrices
    for spec in matrices:
        rows = _head_rows(spec.name, views[0]) if by_head else None
        weight, gradient = _full(spec, 7), _full(spec, GRADIENT)
        expected = weight * (1 - LR * DECAY) - LR * _steps(gradient, rows)
        assert (ended[spec.name] - expected).norm() < 1e-9 * expected.norm(), spec.name


def _full(spec: Any, seed: int) -> torch.Tensor:
    flat = torch.empty(spec.numel, dtype=torch.float64)
    fill_range(spec, 0, spec.numel, seed, flat)
    return flat.view(spec.shape)


def _head_rows(name: str, view: RankView) -> tuple[int, ...] | None:
    model = view.spec.model
    if name.endswith("q_b_proj.weight"):
        return (model.head_dim,)
    return (model.nope_head_dim, model.value_head_dim) if name.endswith("kv_b_proj.weight") else None


def _steps(gradient: torch.Tensor, head_rows: tuple[int, ...] | None) -> torch.Tensor:
    """The first step's direction is a multiple of the gradient."""
    parts = gradient.view(-1, sum(head_rows), gradient.shape[1]).split(head_rows, 1) if head_rows else (gradient,)
    scaled = [max(1, part.shape[-2] / part.shape[-1]) ** 0.5 * plain_orthogonal(part) for part in parts]
    return torch.cat(scaled, dim=-2).view(gradient.shape)


def _units(view: RankView, rank: int, section: MuonSection) -> dict[str, Unit]:
    own = view.spec.layout.coordinates(rank)
    units = build_units(view, rank, section, CPU, lambda flat, i, out: initialize_shard(flat, i, 7, own, out))
    for unit in units.values():
        set_storage(unit.grad_shard if unit.flat.zero >= 2 else unit.grad, live=True)
        initialize_shard(unit.flat, unit.index, GRADIENT, own, unit.grad_shard)
    return units


def _update(view: RankView, units: list[Unit], section: MuonSection) -> None:
    """The instructions M, A, O, Q and U of one unit, on all ranks."""
    flat = units[0].flat
    plan = placement(view.spec, flat)
    shares = [share_of(view.spec, flat, rank) for rank in range(len(units))]
    optimizers = [MatrixOptimizer(section, {flat.unit: share}) for share in shares]
    if not units[0].flat.matrix_numel or units[0].flat.unit in ("embed", "head"):
        return

    def gathered(parts: list[torch.Tensor], axes: tuple[str, ...]) -> list[torch.Tensor]:
        groups = [view.spec.layout.group_of(rank, axes) for rank in range(len(parts))]
        return [torch.cat([parts[member] for member in group]) for group in groups]

    given = [muon.move(unit, 1.0, 0).clone() for muon, unit in zip(optimizers, units, strict=True)]
    if plan.divided:
        given = gathered(given, plan.divided)
    if plan.owners:
        results = [torch.full((plan.slot,), torch.nan, dtype=torch.float64) for _ in units]
        for muon, unit, directions, own in zip(optimizers, units, given, results, strict=True):
            muon.orthogonalize(unit, directions, own)
        given = gathered(results, plan.owners)
    for muon, unit, full in zip(optimizers, units, given, strict=True):
        muon.update(unit, full, LR, 1.0)
