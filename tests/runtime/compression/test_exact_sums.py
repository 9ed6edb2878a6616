"""Compressed gradients are, to the bit, sums in fp32 that one process makes of what every rank had, rounded once to bf16."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.program import Instruction, Op, lower_step, rank_view
from fourfold.program.compression.steps import CompressionOp
from fourfold.runtime.collectives import bind_groups, make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.units import share_parameters
from tests.support.parity_check import check_parity
from tests.support.parity_ranks import LINKS, STAGED_LINKS, initialized_units, prepare_rank
from tests.support.parity_runs import QWEN3_MOE, RankData, global_batch, run_table
from tests.support.ranks import run_on_ranks
from tests.support.staged_links import StagedLinks

CPU = torch.device("cpu")
BF16: dict[str, Any] = {"precision": {"compute": "fp32", "gradient_communication": "bf16"}}
Reduced = list[tuple[str, int, Tensor]]
"""Reductions of a rank, in order: unit, microbatch, the rank's own gradient."""


def _run(rank: int, table: dict[str, Any], ranks: int, native: bool) -> tuple[Reduced, dict[str, Tensor]]:
    """One step: what the rank had before each reduction, and its reduced gradients at the norm."""
    config, view = prepare_rank(rank, table, ranks, "native" if native else "exchange")
    spec = view.spec
    if native:
        groups = bind_groups(spec.layout, rank, groups_of(spec), StagedLinks(), STAGED_LINKS)
    else:
        groups = make_groups(spec.layout, rank, groups_of(spec), 60.0, LINKS)
    units = initialized_units(config, view, rank, CPU)
    executor = Executor(view, units, groups, config.optimizer, CPU, rank)
    share_parameters(spec, units, groups)
    before, after = list[tuple[str, int, Tensor]](), dict[str, Tensor]()
    reduce, norm = executor._handlers[CompressionOp.COMPRESSED_REDUCE], executor._handlers[Op.CLIP_NORM]

    def reduced(step: Instruction) -> None:
        before.append((step.segment or "", step.microbatch or 0, units[step.segment or ""].grad.clone()))
        reduce(step)

    def clipped(step: Instruction) -> None:
        after.update({name: unit.grad_shard.clone() for name, unit in units.items()})
        norm(step)

    executor._handlers |= {CompressionOp.COMPRESSED_REDUCE: reduced, Op.CLIP_NORM: clipped}
    batch = global_batch(0, config.batch.global_sequences, config.batch.sequence_length, spec.model.vocab_size, True)
    executor.run(lower_step(view), RankData(batch, spec, rank), 1e-3)
    return before, after


def _summed(gradients: Sequence[Sequence[Tensor]], index: int) -> Tensor:
    """The running sum in fp32 of shard `index`: microbatch after microbatch, rank after rank. `gradients`: [microbatch][rank]."""
    shards = (each.chunk(len(row))[index] for row in gradients for each in row)
    total, *others = (shard.to(torch.bfloat16).to(torch.float32) for shard in shards)
    for each in others:
        total = total + each
    return total


LAYOUTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "zero 1": (2, {"dp_shard": 2, "zero": 1}, {}),
    "zero 2": (3, {"dp_shard": 3, "zero": 2}, {}),
    "zero 3": (4, {"dp_shard": 4, "zero": 3}, {}),
    "replicas, zero 1": (4, {"dp_replicate": 2, "dp_shard": 2, "zero": 1}, {}),
    "replicas, zero 3": (4, {"dp_replicate": 2, "dp_shard": 2, "zero": 3}, {}),
    "context": (4, {"dp_shard": 2, "cp": 2, "zero": 2}, {}),
    "experts": (4, {"dp_shard": 4, "ep": 2, "zero": 2}, QWEN3_MOE),
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_sums_are_those_of_one_process_to_the_bit(name: str, native: bool) -> None:
    """Ranks have documents, and so valid tokens, of their own number; every rank rounds once, whatever carries the bytes."""
    ranks, layout, model = LAYOUTS[name]
    batch = {"global_sequences": 4 * ranks, "sequence_length": 16, "steps": 1}
    table = run_table(
        layout=layout, model={"vocab_size": 96, **model}, batch=batch, data={"document_mask": True}, **BF16
    )
    _, view = prepare_rank(0, table, ranks, "native" if native else "exchange")
    found = run_on_ranks(ranks, _run, table=table, ranks=ranks, native=native)
    mesh, compared = view.spec.layout, 0
    for rank, (_, shards) in enumerate(found):
        for unit, shard in shards.items():
            flat = view.flats[unit]
            replicas = mesh.group_of(rank, mesh.active(("dp_replicate",))) if mesh.dp_replicate > 1 else (rank,)
            total = torch.zeros(())
            for replica in replicas:
                members = mesh.group_of(replica, flat.shard_axes)
                own = [[grad for each, _, grad in found[member][0] if each == unit] for member in members]
                total = total + _summed(list(zip(*own, strict=True)), members.index(replica))
            assert torch.equal(shard, total), f"{unit} on rank {rank}"
            assert total.abs().max() > 0
            compared += shard.numel()
    assert compared > 1000


@pytest.mark.parametrize("staged", ["", "cpu"])
def test_all_that_travels_is_declared(staged: str) -> None:
    """The step stays near that of the reference: rounding errs by 2^-9 at most."""
    layout = {"dp_shard": 2, "zero": 2, "tp": 2, "sequence_parallel": True}
    batch = {"sequence_length": 16, "steps": 2}
    sections: dict[str, Any] = {"batch": batch, "model": {"vocab_size": 96}, "optimizer": {"eps": 1e-2}}
    check_parity(4, 2e-2, staged=staged, layout=layout, **sections, **BF16)


def test_reductions_send_half() -> None:
    """Reductions of the compressed program send half of the others' bytes."""
    table = run_table(layout={"dp_shard": 2, "zero": 2}, batch={"global_sequences": 4, "sequence_length": 16}, **BF16)
    _, view = prepare_rank(0, table, 2)
    compressed = lower_step(view)
    plain = lower_step(rank_view(prepare_rank(0, {**table, "precision": {"compute": "fp32"}}, 2)[1].spec))
    sizes = [
        sum(c.sent_bytes for step in program.instructions if step.op.is_reduction for c in step.collectives)
        for program in (compressed, plain)
    ]
    assert sizes[0] * 2 == sizes[1] > 0
