"""The contenders: one training step of one model under DDP, FSDP2, DeepSpeed ZeRO-1/2/3, and without communication."""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from fsdp2_hooks import use_exchange
from fused_llama import fuse
from onednn_linear import use_faster_library
from plain_llama import PlainLlama, Shape

BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0
DDP_BUCKET_MIB = 25
MEASURED_TOKENS = 512
"""Tokens of the products on which libraries are compared."""


class Peer:
    """One contender. A step is forward, backward, clipping of the global gradient norm at `CLIP_NORM`, AdamW.

    `gradient_norm` is the norm that the last step found, before clipping. AdamW forgives a wrong factor on all gradients,
    so a loss curve alone does not show that contenders reduce alike: this norm does.
    """

    name: str
    gradient_norm: float

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """Train on this rank's tokens and targets [B, T]; returns the mean loss over the targets of all ranks.

        Every rank brings equally many targets, none of them masked.
        """
        raise NotImplementedError


def build_model(shape: Shape, weights: dict[str, Tensor]) -> PlainLlama:
    """The plain model holding a copy of `weights`."""
    model = PlainLlama(shape)
    model.load_state_dict(weights)
    return model


def adamw(model: nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """torch's fused AdamW. Matrices are decayed and norms are not, as in fourfold and in most trainers."""
    parameters = list(model.parameters())
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [parameter for parameter in parameters if parameter.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, eps=EPS, fused=True)


def mean_over_ranks(loss: Tensor) -> float:
    """The mean of every rank's scalar loss."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


class TorchPeer(Peer):
    """Base of DDP, FSDP2 and the floor: the plain model, wrapped, and torch's own clipping and fused AdamW."""

    def __init__(self, name: str, shape: Shape, weights: dict[str, Tensor], learning_rate: float):
        self.name = name
        self.model = self.wrap(build_model(shape, weights))
        self.optimizer = adamw(self.model, learning_rate)

    def wrap(self, model: PlainLlama) -> nn.Module:
        """How this peer distributes `model`."""
        raise NotImplementedError

    def gradient_scale(self) -> float:
        """Factor of the loss before backward, so that gradients come out as the global mean's."""
        return 1.0

    def clip(self) -> Tensor:
        """Clip the gradients in place; returns their global norm from before."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)

    def reported(self, loss: Tensor) -> float:
        return mean_over_ranks(loss)

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        loss = self.model(tokens, targets, targets.numel() / self.gradient_scale())
        loss.backward()
        self.gradient_norm = self.clip().item()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return self.reported(loss) / self.gradient_scale()


class Local(TorchPeer):
    """Work without a byte of communication, each rank on its own batch: the floor, and no valid training."""

    def wrap(self, model: PlainLlama) -> nn.Module:
        return model

    def reported(self, loss: Tensor) -> float:
        return loss.item()


class FasterMatmuls(Local):
    """`Local` with matmuls by oneDNN where it is faster than MKL."""

    def wrap(self, model: PlainLlama) -> nn.Module:
        use_faster_library(model, tokens=MEASURED_TOKENS)
        return model


class FusedFasterMatmuls(Local):
    """`FasterMatmuls` with fourfold's larger matmuls too."""

    def wrap(self, model: PlainLlama) -> nn.Module:
        fuse(model)
        use_faster_library(model, tokens=MEASURED_TOKENS)
        return model


class Compiled(Local):
    """`Local` through torch.compile: Inductor's fused loops between the matmuls."""

    def wrap(self, model: PlainLlama) -> nn.Module:
        compiled: nn.Module = torch.compile(model)
        return compiled


class CompiledFasterMatmuls(Compiled):
    """`Compiled` with matmuls by oneDNN where it is faster than MKL."""

    def wrap(self, model: PlainLlama) -> nn.Module:
        use_faster_library(model, tokens=MEASURED_TOKENS)
        return super().wrap(model)


class DDP(TorchPeer):
    """DistributedDataParallel: gradients are averaged bucket by bucket while backward runs."""

    def wrap(self, model: PlainLlama) -> nn.Module:
        return DistributedDataParallel(
            model,
            bucket_cap_mb=DDP_BUCKET_MIB,
            gradient_as_bucket_view=True,
            broadcast_buffers=False,
            static_graph=True,
        )


class DDPFusedFasterMatmuls(DDP):
    """`DDP` with fourfold's larger matmuls, by oneDNN where it is faster than MKL."""

    def wrap(self, model: PlainLlama) -> nn.Module:
        fuse(model)
        use_faster_library(model, tokens=MEASURED_TOKENS)
        return super().wrap(model)


class FSDP2(TorchPeer):
    """fully_shard on every block and the root: ZeRO-3 where parameters are resharded after forward, else ZeRO-2.

    `exchange`: over fourfold's transport in place of gloo's collectives. `fused`: with fourfold's larger matmuls. `onednn`: by
    oneDNN where it is faster than MKL.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        weights: dict[str, Tensor],
        learning_rate: float,
        reshard: bool,
        exchange: bool = False,
        fused: bool = False,
        onednn: bool = False,
    ):
        self.reshard, self.exchange, self.fused, self.onednn = reshard, exchange, fused, onednn
        super().__init__(name, shape, weights, learning_rate)

    def wrap(self, model: PlainLlama) -> nn.Module:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        if self.fused:
            fuse(model)
        if self.onednn:
            use_faster_library(model, tokens=MEASURED_TOKENS)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=self.reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=self.reshard)
        for module in (*model.model.layers, model):  # the setters do not reach submodules
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        if self.exchange:
            use_exchange([*model.model.layers, model])
        return model

    def gradient_scale(self) -> float:
        return 1.0 / dist.get_world_size()

    def clip(self) -> Tensor:
        parameters = list(self.model.parameters())
        norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters])
        norm = norm.full_tensor()  # else every multiplication below would gather it again
        nn.utils.clip_grads_with_norm_(parameters, CLIP_NORM, norm)
        return norm


class DeepSpeed(Peer):
    """DeepSpeed's engine at ZeRO stage 1, 2 or 3: fp32, no offload, torch's fused AdamW as the client optimizer."""

    def __init__(self, name: str, shape: Shape, weights: dict[str, Tensor], learning_rate: float, stage: int):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))
        os.environ.setdefault("LOCAL_SIZE", str(dist.get_world_size()))
        import deepspeed  # here, since importing it takes seconds that the other peers need not wait for

        self.name = name
        model = build_model(shape, weights)
        optimizer = adamw(model, learning_rate)
        block_elements = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
        plain_linear = F.linear
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=deepspeed_config(stage, block_elements), dist_init_required=False
        )
        self.linear, F.linear = F.linear, plain_linear

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        with self.own_linear():
            loss = self.engine(tokens, targets, float(targets.numel()))
            self.engine.backward(loss)
            self.engine.step()  # clips, updates and zeroes
        self.gradient_norm = float(self.engine.get_global_grad_norm())
        return mean_over_ranks(loss)

    @contextlib.contextmanager
    def own_linear(self) -> Iterator[None]:
        """ZeRO-3 replaces F.linear for the whole process: only DeepSpeed's own steps shall see that."""
        plain_linear, F.linear = F.linear, self.linear
        try:
            yield
        finally:
            F.linear = plain_linear


def deepspeed_config(stage: int, block_elements: int) -> dict:
    """DeepSpeed's JSON. Its sizes count elements and are meant for billions of parameters: at their defaults the buckets of
    a model of this size take 2 GB and ZeRO-3 never frees a block after forward. They are scaled to the size of a block,
    which is also at least as fast."""
    zero: dict = {"stage": stage, "reduce_bucket_size": block_elements, "allgather_bucket_size": block_elements}
    if stage == 3:
        zero |= {
            "stage3_max_live_parameters": 2 * block_elements,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": block_elements,
            "stage3_param_persistence_threshold": 10_000,
        }
    return {
        "train_micro_batch_size_per_gpu": 1,  # bookkeeping alone: the batch that is passed in counts
        "gradient_accumulation_steps": 1,
        "gradient_clipping": CLIP_NORM,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }


PEERS: dict[str, Callable[[Shape, dict[str, Tensor], float], Peer]] = {
    "local": partial(Local, "local"),
    "local_compiled": partial(Compiled, "local_compiled"),
    "local_onednn": partial(FasterMatmuls, "local_onednn"),
    "local_compiled_onednn": partial(CompiledFasterMatmuls, "local_compiled_onednn"),
    "local_fused_onednn": partial(FusedFasterMatmuls, "local_fused_onednn"),
    "ddp_fused_onednn": partial(DDPFusedFasterMatmuls, "ddp_fused_onednn"),
    "ddp": partial(DDP, "ddp"),
    "fsdp2_zero2": partial(FSDP2, "fsdp2_zero2", reshard=False),
    "fsdp2": partial(FSDP2, "fsdp2", reshard=True),
    "fsdp2_fused": partial(FSDP2, "fsdp2_fused", reshard=True, fused=True),
    "fsdp2_exchange": partial(FSDP2, "fsdp2_exchange", reshard=True, exchange=True),
    "fsdp2_exchange_fused": partial(FSDP2, "fsdp2_exchange_fused", reshard=True, exchange=True, fused=True),
    "fsdp2_exchange_fused_onednn": partial(
        FSDP2, "fsdp2_exchange_fused_onednn", reshard=True, exchange=True, fused=True, onednn=True
    ),
    "deepspeed_zero1": partial(DeepSpeed, "deepspeed_zero1", stage=1),
    "deepspeed_zero2": partial(DeepSpeed, "deepspeed_zero2", stage=2),
    "deepspeed_zero3": partial(DeepSpeed, "deepspeed_zero3", stage=3),
}
