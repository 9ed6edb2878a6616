"""A step's sums over ranks: targets, losses, loads of experts, the gradient norm. Axes and bytes of each."""

from fourfold.config import ModelConfig
from fourfold.layout import Layout
from fourfold.layout.mesh import DATA_AXES, axes_name
from fourfold.model.work import Collective, CollectiveKind
from fourfold.program.spec import StepSpec

SCALAR_BYTES = 8


def over(layout: Layout, kind: CollectiveKind, axes: tuple[str, ...], size: int) -> Collective:
    """A collective over these axes, all active."""
    return Collective(kind, axes_name(axes), size, layout.group_size(axes))


def data_axes(layout: Layout) -> tuple[str, ...]:
    """Active axes whose ranks see different tokens: the valid targets are counted over them."""
    return layout.active(DATA_AXES)


def count_bytes(model: ModelConfig) -> int:
    """The numbers of valid targets, of every depth of prediction."""
    return SCALAR_BYTES * (1 + model.mtp_layers)


def loss_axes(spec: StepSpec) -> tuple[str, ...]:
    """Active axes over which the loss, for the record, is spread; routers' auxiliary losses over `tp` too."""
    return spec.layout.active(("pp", *DATA_AXES, *(("tp",) if spec.model.num_experts else ())))


def num_losses(model: ModelConfig) -> int:
    """The recorded loss, the routers' balance and z losses beside it, the logits' z-loss, and the losses of MTP modules."""
    return (3 if model.num_experts else 1) + bool(model.logits_z_loss) + model.mtp_layers


def loss_bytes(model: ModelConfig) -> int:
    """The recorded losses."""
    return SCALAR_BYTES * num_losses(model)


def router_axes(layout: Layout) -> tuple[str, ...]:
    """Active axes whose ranks route different tokens, or have other routers."""
    return layout.active(("pp", *DATA_AXES, "tp"))


def router_loads_bytes(spec: StepSpec) -> int:
    """How many tokens chose each expert, of all routers of the model."""
    return SCALAR_BYTES * spec.model.num_experts * sum(segment.moe for segment in spec.segments)


def norm_axes(layout: Layout) -> tuple[str, ...]:
    """Active axes over which different parts of the gradient lie: the global norm is summed over them."""
    spread = layout.zero > 0 or layout.ep * layout.etp > 1
    return layout.active(("pp", *(("dp_shard", "cp") if spread else ()), "tp"))
