"""Tensor parallelism of torch: the plain model under `parallelize_module`, alone or inside `fully_shard`."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from peers import CLIP_NORM, TorchPeer
from plain_llama import PlainLlama
from plain_llama import Shape as LlamaShape


def plan(num_layers: int, sequence: bool) -> dict[str, ParallelStyle]:
    """Column- and row-parallel products as in torch's own tutorial and in torchtitan: the input of q, k and v becomes one
    DTensor, so that its gradient is summed once and not three times. `sequence`: norms and residual stream split by tokens."""
    stream = Shard(1) if sequence else Replicate()
    styles: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "lm_head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
    }
    norms = ["model.norm"]
    for index in range(num_layers):
        block = f"model.layers.{index}"
        norms += [f"{block}.input_layernorm", f"{block}.post_attention_layernorm"]
        others = (None, None)  # cos and sin
        styles[f"{block}.self_attn"] = PrepareModuleInput(
            input_layouts=(stream, *others), desired_input_layouts=(Replicate(), *others)
        )
        styles[f"{block}.mlp"] = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            styles[f"{block}.{name}"] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            styles[f"{block}.{name}"] = RowwiseParallel(output_layouts=stream)
    if sequence:
        styles |= {name: SequenceParallel() for name in norms}
    return styles


class TensorParallel(TorchPeer):
    """`parallelize_module` over the innermost `tp` ranks with loss parallelism; over the others, if any, `fully_shard`.

    Every rank is given the global batch; a data-parallel rank trains on its rows of it, microbatch by microbatch, and reduces
    its gradients after the last.
    """

    def __init__(
        self,
        name: str,
        shape: LlamaShape,
        weights: dict[str, Tensor],
        learning_rate: float,
        sequence: bool,
        tp: int,
        microbatch_sequences: int,
    ):
        self.sequence, self.microbatch_sequences = sequence, microbatch_sequences
        self.mesh = init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
        self.dp, self.dp_rank = self.mesh["dp"].size(), self.mesh["dp"].get_local_rank()
        super().__init__(name, shape, weights, learning_rate)

    def wrap(self, model: PlainLlama) -> nn.Module:
        parallelize_module(model, self.mesh["tp"], plan(len(model.model.layers), self.sequence))
        if self.dp == 1:
            return model
        for module in (*model.model.layers, model):
            fully_shard(module, mesh=self.mesh["dp"], reshard_after_forward=True)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        return model

    def clip(self) -> Tensor:
        """Split parameters and whole ones apart: torch's own functions do not mix them."""
        parameters = list(self.model.parameters())
        kinds = [[p for p in parameters if isinstance(p, DTensor) == split] for split in (True, False)]
        norms = [nn.utils.get_total_norm([p.grad for p in kind]) for kind in kinds if kind]
        norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        total = torch.linalg.vector_norm(torch.stack(norms))
        for kind in kinds:
            nn.utils.clip_grads_with_norm_(kind, CLIP_NORM, total)
        return total

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        divisor, total = float(targets.numel()), torch.zeros(())
        rows = slice(self.dp_rank * len(tokens) // self.dp, (self.dp_rank + 1) * len(tokens) // self.dp)
        parts = [part[rows].split(self.microbatch_sequences) for part in (tokens, targets)]
        with loss_parallel():
            for index, microbatch in enumerate(zip(*parts, strict=True)):
                if self.dp > 1:
                    self.model.set_requires_gradient_sync(index == len(parts[0]) - 1)
                loss = self.model(*microbatch, divisor)
                loss.backward()
                total += loss.full_tensor().detach()
        self.gradient_norm = self.clip().item()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.dp > 1:
            dist.all_reduce(total, group=self.mesh["dp"].get_group())
        return total.item()
