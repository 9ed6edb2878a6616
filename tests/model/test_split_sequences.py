"""Segments on a split sequence, alone and with split weights, equal full segments; what they send is what footprints declare."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fourfold.config import ModelConfig
from fourfold.model.environment import Microbatch
from fourfold.model.footprint import Shape, segment_footprint, segment_halves
from fourfold.model.parallel import ContextParallel, Parallel
from fourfold.runtime.collectives import AxisGroup, make_groups
from tests.support.plain_model import PlainModel, random_tokens
from tests.support.ranks import run_on_ranks
from tests.support.split_model import (
    LINKS,
    CountingGroup,
    SplitModel,
    relative_error,
    run_segments,
    split_layout,
    take_box,
)

MODEL = ModelConfig(2, 24, 8, 4, 6, 40, 64)
MLA = replace(
    MODEL, family="deepseek_v3", num_kv_heads=8, head_dim=10, query_rank=12, key_value_rank=8, rope_head_dim=4,
    nope_head_dim=6, value_head_dim=4, rope_interleave=True,
)  # fmt: skip
GPT2 = replace(
    MODEL, family="gpt2", num_kv_heads=8, norm="layer", activation="gelu", gated=False, linear_bias=True,
    positions="learned", max_position=16,
)  # fmt: skip
ROWS, LENGTH = 2, 16
DOCUMENTS = [[5, 11], [1, 2, 13]]


def run_rank(
    rank: int, model: ModelConfig, tp: int, cp: int, method: str, sequence: bool, documents: bool, deferred: bool
) -> dict[str, Any]:
    """Relative errors by name; what each group started, and what the footprints of all segments declare."""
    full = PlainModel(model)
    layout = split_layout(model, tp, cp, method, sequence, LENGTH)
    split = SplitModel(full, layout, rank)
    tokens, targets = random_tokens(model, ROWS, LENGTH)
    lengths = DOCUMENTS if documents else None
    batch = full.microbatch(tokens, targets, lengths)
    names = [axis for axis in ("tp", "cp_ring", "cp_ulysses") if layout.degree(axis) > 1]
    groups = {name: CountingGroup(g) for name, g in make_groups(layout, rank, [*names, "cp"], 60.0, LINKS).items()}
    context = ContextParallel(groups.get("cp_ring"), groups.get("cp_ulysses"), method == "all_gather")
    parallel = Parallel(groups.get("tp"), sequence, layout.tp_copy, context)
    positions = torch.tensor(layout.positions(rank))
    axis = 1 if documents else 0
    local = Microbatch(
        tokens[:, positions].contiguous(),
        targets[:, positions].contiguous(),
        {
            rope: (cos.index_select(axis, positions), sin.index_select(axis, positions))
            for rope, (cos, sin) in batch.rope.items()
        },
        lengths,
        batch.positions[:, positions].contiguous() if batch.positions is not None else None,
    )
    expected = run_segments(model, full.segments, full.weights, full.units, batch, 29)
    actual = run_segments(model, split.segments, split.weights, split.units, local, 29, parallel, deferred=deferred)
    total = actual.loss.clone().view(1)
    context_group: AxisGroup = groups["cp"]._group
    context_group.all_reduce(total).wait()
    errors = {"loss": relative_error(total[0], expected.loss)}
    full_gradients = full.gradients()
    parameters = {p.name: p for flat in split.flats.values() for p in flat.parameters}
    for name, grad in split.summed_gradients().items():
        summed = grad.contiguous().view(-1)
        context_group.all_reduce(summed).wait()
        part = take_box(full_gradients[name], parameters[name].box(split.coordinates))
        errors[name] = relative_error(summed.view_as(part), part)
    shape = Shape(
        ROWS, LENGTH, "fp64", "fp64", documents, tp, sequence, layout.tp_copy, layout.cp_ring, layout.cp_ulysses,
        method == "all_gather",
    )  # fmt: skip
    declared = []
    for segment in split.segments:
        footprint = segment_footprint(segment, model, shape, "none")
        halves = segment_halves(segment, model, shape, "none")
        both_halves = (halves.input_gradient, halves.weight_gradient)
        if segment.kind == "head":
            declared += footprint.forward.collectives  # the loss alone, once
        for work in both_halves if deferred and segment.kind == "block" else (footprint.backward,):
            declared += work.collectives
        if segment.kind != "head":
            declared += footprint.forward.collectives
    return {
        "errors": errors,
        "started": sorted((name, *each) for name in names for each in groups[name].started),
        "declared": sorted((t.axes, t.kind, t.bytes) for t in declared),
    }


@pytest.mark.grid(2)
@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
@pytest.mark.parametrize("documents", [False, True], ids=["whole", "documents"])
@pytest.mark.parametrize(
    ("tp", "sequence", "method"),
    [(1, False, "ring"), (1, False, "all_gather"), (1, False, "ulysses"), (2, False, "ring"), (2, True, "ulysses")],
)
@pytest.mark.parametrize("model", [MODEL, MLA, GPT2], ids=["grouped", "mla", "gpt2"])
def test_blocks_on_a_split_sequence(
    model: ModelConfig, tp: int, sequence: bool, method: str, documents: bool, deferred: bool
) -> None:
    options = {"tp": tp, "cp": 2, "method": method, "sequence": sequence}
    for result in run_on_ranks(2 * tp, run_rank, model=model, documents=documents, deferred=deferred, **options):
        assert result["started"] == result["declared"]
        worst = max(result["errors"], key=result["errors"].__getitem__)
        assert result["errors"][worst] < 1e-10, worst
