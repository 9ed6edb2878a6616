"""FSDP2 over fourfold's transport: all-gather and reduce-scatter as sends between pairs of ranks, through FSDP2's public hooks.

gloo's own collectives move the same bytes in several times the time. On a CPU, FSDP2 has one stream and waits within the call.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule


def use_exchange(modules: Sequence[FSDPModule]) -> None:
    """Replaces the two collectives of these modules; the hooks do not reach submodules."""
    for module in modules:
        module.set_custom_all_gather(ExchangeAllGather())
        module.set_custom_reduce_scatter(ExchangeReduceScatter())


class _Exchange:
    """The interface that FSDP2 asks for: `allocate`, and a call that communicates."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class ExchangeAllGather(_Exchange):
    """Every rank sends its shard to every other."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        own, others = _parts(output_tensor, group)
        _exchange(group, [input_tensor] * len(others), others)
        if own.data_ptr() != input_tensor.data_ptr():
            own.copy_(input_tensor)


class ExchangeReduceScatter(_Exchange):
    """Every rank sends every other its part, and sums what it receives."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        if op != dist.ReduceOp.SUM:
            raise NotImplementedError(f"op = {op}; allowed is ReduceOp.SUM: set_force_sum_reduction_for_comms(True)")
        own, others = _parts(input_tensor, group)
        received = [torch.empty_like(part) for part in others]
        _exchange(group, others, received)
        torch.add(own, received[0], out=output_tensor)
        for part in received[1:]:
            output_tensor.add_(part)


def _parts(full: Tensor, group: Any) -> tuple[Tensor, list[Tensor]]:
    """This rank's part and the others', in group order."""
    parts = list(full.view(dist.get_world_size(group), -1).unbind(0))
    return parts.pop(dist.get_rank(group)), parts


def _exchange(group: Any, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
    """sent[i] to, received[i] from the i-th other rank."""
    others = [rank for rank in dist.get_process_group_ranks(group) if rank != dist.get_rank()]
    works = [dist.irecv(x, rank, group=group) for x, rank in zip(received, others, strict=True)]
    works += [dist.isend(x, rank, group=group) for x, rank in zip(sent, others, strict=True)]
    for work in works:
        assert work is not None
        work.wait()
