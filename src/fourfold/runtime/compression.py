"""Compressed reductions: a rank rounds its gradient, sends every rank its shard, and adds up in fp32 what it receives.

The sum is a running one: microbatch after microbatch, and of each, rank after rank in the order of the group, the rank's own
contribution among them, rounded like all others. So it does not depend on how a library sends, and a single process can repeat it.
"""

from torch import Tensor

from fourfold.model.torch_operations import torch_dtype
from fourfold.program import Instruction
from fourfold.program.compression.steps import Compression, CompressionOp
from fourfold.runtime.collectives import Phases
from fourfold.runtime.step_state import Handlers, StepState
from fourfold.runtime.units import Unit, is_live, set_storage


def handlers(state: StepState, core: Handlers) -> Handlers:
    """The compressed reduction."""
    setting = state.view.spec.setting(Compression)

    def start(step: Instruction) -> None:
        assert setting is not None
        unit = state.units[step.segment or ""]
        state.begin_reduction(step)
        set_storage(unit.reduce, live=True)
        adds = unit.flat.zero >= 2 and is_live(unit.grad_shard)
        if unit.flat.zero >= 2 and not adds:
            set_storage(unit.grad_shard, live=True)
        sent, received = unit.reduce.view(torch_dtype(setting.format)).chunk(2)
        state.start_phases(step, _phases(state, step, unit, sent, received, adds))

    return {CompressionOp.COMPRESSED_REDUCE: start}


def _phases(state: StepState, step: Instruction, unit: Unit, sent: Tensor, received: Tensor, adds: bool) -> Phases:
    """Partial sums of tensor-parallel ranks; the all-to-all of `sent` [ranks * shard] to `received` [ranks * shard], and its sum,
    which `adds` to the shard or is assigned to it; the replicas' sum."""
    for axis, start, end in unit.flat.sums:
        yield from state.groups[axis].all_reduce_phases(unit.grad[start:end])
    exchange, *replicas = step.collectives[len(unit.flat.sums) :]
    sent.copy_(unit.grad)
    yield from state.groups[exchange.axes].all_to_all_phases(received, sent)
    first, *others = received.view(exchange.group_size, -1)
    if adds:
        unit.grad_shard.add_(first)
    else:
        unit.grad_shard.copy_(first)
    for each in others:
        unit.grad_shard.add_(each)
    for each in replicas:
        yield from state.groups[each.axes].all_reduce_phases(unit.grad_shard)
