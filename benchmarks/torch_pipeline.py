"""Pipelines of torch.distributed.pipelining: stages are modules made by hand from the plain model's own."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fourfold.program.schedule import find_schedule, stage_ranks
from peers import CLIP_NORM, Peer, adamw, build_model
from plain_llama import PlainLlama, Shape


class StageModule(nn.Module):
    """Consecutive segments of the plain model: embedding (0), blocks (1 ...), head (the last)."""

    def __init__(self, model: PlainLlama, segments: range):
        super().__init__()
        layers = model.model.layers
        self.embedding = model.model.embed_tokens if 0 in segments else None
        self.layers = nn.ModuleList(layers[s - 1] for s in segments if 1 <= s <= len(layers))
        ends = len(layers) + 1 in segments
        self.norm, self.head = (model.model.norm, model.lm_head) if ends else (None, None)
        self.register_buffer("cos", model.model.cos, persistent=False)
        self.register_buffer("sin", model.model.sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """tokens [B, T] or hidden states [B, T, hidden] -> hidden states or logits."""
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x if self.head is None else self.head(self.norm(x))


def own_stages(schedule: str, rank: int, pp: int, num_stages: int) -> list[int]:
    """The stages of a pipeline rank."""
    return [stage for stage, held_by in enumerate(stage_ranks(schedule, pp, num_stages // pp)) if held_by == rank]


class Pipeline(Peer):
    """A schedule over `pp` ranks; where there are more ranks, every stage is under `fully_shard` over the others (its
    gradients are reduced once, after the last microbatch). The pipeline gives forward and backward; clipping and the fused AdamW
    are torch's, with the norm summed over the stages."""

    def __init__(
        self,
        name: str,
        shape: Shape,
        weights: dict[str, Tensor],
        learning_rate: float,
        schedule: str,
        sizes: Sequence[int],
        microbatches: int,
        pp: int,
    ):
        self.name = name
        self.mesh = init_device_mesh("cpu", (pp, dist.get_world_size() // pp), mesh_dim_names=("pp", "dp"))
        self.rank, self.group = self.mesh["pp"].get_local_rank(), self.mesh["pp"].get_group()
        self.dp, self.dp_rank = self.mesh["dp"].size(), self.mesh["dp"].get_local_rank()
        model = build_model(shape, weights)
        bounds = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
        own = own_stages(schedule, self.rank, pp, len(sizes))
        self.modules = nn.ModuleList(self._wrap(StageModule(model, range(bounds[s], bounds[s + 1]))) for s in own)
        stages = [
            pipelining.PipelineStage(module, index, len(sizes), torch.device("cpu"), group=self.group)
            for module, index in zip(self.modules, own, strict=True)
        ]
        kind = getattr(pipelining, f"Schedule{find_schedule(schedule).names['torch']}")
        self.schedule = kind(
            stages if len(stages) > 1 else stages[0], microbatches, loss_fn=self._loss, scale_grads=False
        )
        self.first, self.last = 0 in own, len(sizes) - 1 in own
        self.optimizer = adamw(self.modules, learning_rate)

    def _wrap(self, module: StageModule) -> nn.Module:
        if self.dp == 1:
            return module
        for part in (*module.layers, module):
            fully_shard(part, mesh=self.mesh["dp"], reshard_after_forward=False)
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        return module

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / self.num_targets

    def _clip(self) -> float:
        gradients = [parameter.grad for parameter in self.modules.parameters()]
        norm = nn.utils.get_total_norm(gradients)
        total = (norm.full_tensor() if isinstance(norm, DTensor) else norm).square()
        dist.all_reduce(total, group=self.group)
        nn.utils.clip_grads_with_norm_(self.modules.parameters(), CLIP_NORM, total.sqrt_())
        return total.item()

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """`tokens`, `targets`: the global batch."""
        self.num_targets = float(targets.numel())
        rows = slice(self.dp_rank * len(tokens) // self.dp, (self.dp_rank + 1) * len(tokens) // self.dp)
        losses: list[Tensor] = []
        arguments = (tokens[rows],) if self.first else ()
        ending = {"target": targets[rows], "losses": losses} if self.last else {}
        self.schedule.step(*arguments, **ending, return_outputs=False)
        self.gradient_norm = self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.stack(losses).sum().detach() if losses else torch.zeros(())
        dist.all_reduce(total)
        return total.item()
