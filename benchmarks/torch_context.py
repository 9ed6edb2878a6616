"""Context parallelism of torch: its ring attention, over the plain model's `scaled_dot_product_attention`.

`torch.distributed.tensor.experimental.context_parallel` knows the attention kernels of GPUs alone (torch 2.13): `attempt`
shows what it does on a CPU. Its algorithm, `_templated_ring_attention` with head-tail balancing, takes any kernel: here it gets
the CPU's.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

from peers import FSDP2
from plain_llama import Shape

ATEN: Any = torch.ops.aten


def _kernel(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, **options: Any) -> Any:
    return ATEN._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal, **options)


def _kernel_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    **options: Any,
) -> Any:
    backward = ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(grad_out, query, key, value, out, logsumexp, 0.0, is_causal, **options)


class RingAttention(torch.autograd.Function):
    """torch's ring attention with the CPU's kernel. q, k, v [B, heads, T, D]."""

    @staticmethod
    def forward(ctx: Any, group: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, logsumexp = ring._templated_ring_attention(group, 2, _kernel, q, k, v, is_causal=True)
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, logsumexp = ctx.saved_tensors
        inputs = {"query": q, "key": k, "value": v, "out": out, "logsumexp": logsumexp}
        grads = ring._templated_ring_attention_backward(
            ctx.group, 2, _kernel_backward, grad_out=grad, grad_out_name="grad_out", is_causal=True, **inputs
        )
        return None, *grads[:3]


class ContextParallel(FSDP2):
    """Every rank has the parts of the sequence that torch's head-tail balancer gives it. `rotate`: `alltoall` or `allgather`.
    Parameters, gradients and optimizer state are split over the same ranks by `fully_shard`, as torchtitan does."""

    def __init__(self, name: str, shape: Shape, weights: dict[str, Tensor], learning_rate: float, rotate: str):
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        self.rotate = rotate
        super().__init__(name, shape, weights, learning_rate, reshard=True)
        self.tables = self.model.model.cos, self.model.model.sin

    def columns(self, length: int) -> Tensor:
        """This rank's positions: its chunk from the head and its chunk from the tail."""
        chunks = torch.arange(length).chunk(2 * self.size)
        return torch.cat((chunks[self.rank], chunks[2 * self.size - 1 - self.rank]))

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        columns = self.columns(tokens.shape[1])
        self.model.model.cos, self.model.model.sin = (table[columns] for table in self.tables)
        ring.set_rotate_method(self.rotate)
        torch_attention, F.scaled_dot_product_attention = F.scaled_dot_product_attention, self._attend
        try:
            loss = self.model(tokens[:, columns], targets[:, columns], float(targets.numel()))
            loss.backward()
        finally:
            F.scaled_dot_product_attention = torch_attention
        self.gradient_norm = self.clip().item()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total.item()

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        return RingAttention.apply(dist.group.WORLD, q, k, v)


def attempt(rank: int) -> str:
    """Outcome of `context_parallel` as it is on this machine: the error's first line, or how far its output is off."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 32, 16) for _ in range(3))
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    ring.set_rotate_method("alltoall")
    try:
        with context_parallel(mesh, buffers=[q, k, v, exact], buffer_seq_dims=[2] * 4):
            error = (F.scaled_dot_product_attention(q, k, v, is_causal=True) - exact).norm() / exact.norm()
            return f"its output differs from exact attention by {error.item():.1e} (relative)"
    except Exception as failure:
        return f"{type(failure).__name__}: {str(failure).splitlines()[0][:300]}"
