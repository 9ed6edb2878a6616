"""The declarations of compressed reductions, beside the pass that makes them: half the bytes travel, and no REDUCE is left."""

from collections.abc import Mapping

from fourfold.config import DTYPE_BYTES
from fourfold.layout.mesh import axes_name
from fourfold.model.work import Collective, CollectiveKind, Elementwise, Item, Start, Work
from fourfold.program.capability import GradientRule, GradientWalk
from fourfold.program.compression.steps import Compression, CompressionOp
from fourfold.program.declared import Declared
from fourfold.program.instruction import Instruction, Op, Opcode
from fourfold.program.view import RankView


def declared(step: Instruction, kind: str, view: RankView, allowed: list[Declared]) -> list[Declared]:
    """A compressed reduction in place of every REDUCE of a sharded gradient, over the shards alone, or over replicas too."""
    setting, flat = view.spec.setting(Compression), view.flats.get(step.segment or "")
    if setting is None or flat is None or not flat.zero or step.op not in (Op.REDUCE, CompressionOp.COMPRESSED_REDUCE):
        return allowed
    if step.op is Op.REDUCE or step.microbatch is None:
        return []
    numel, part = flat.shard_numel * flat.num_shards, flat.shard_numel
    element, sent = DTYPE_BYTES[view.spec.gradients], DTYPE_BYTES[setting.format]

    def over(name: CollectiveKind, axes: tuple[str, ...], size: int) -> list[Item]:
        active = view.spec.layout.active(axes)
        return [Start(Collective(name, axes_name(active), size, view.spec.layout.group_size(active)))] if active else []

    rounding, adding = numel * (element + sent), numel * sent + part * element
    items = [item for axis, start, end in flat.sums for item in over("all_reduce", (axis,), (end - start) * element)]
    items += [Elementwise(rounding, rounding), *over("all_to_all", flat.shard_axes, numel * sent)]
    items.append(Elementwise(adding, adding, flat.num_shards))
    replicas = over("all_reduce", ("dp_replicate",), part * element)
    reads = (f"grad/{flat.unit}",)
    writes = tuple(sorted((f"grad_shard/{flat.unit}" if flat.zero >= 2 else reads[0], f"reduce/{flat.unit}")))
    ends = [items, [*items, *replicas]] if replicas else [items]
    return [Declared(reads, writes, Work(tuple(each))) for each in ends]


def gradient_rules(walk: GradientWalk) -> Mapping[Opcode, GradientRule]:
    """A compressed reduction is a reduction."""
    return {CompressionOp.COMPRESSED_REDUCE: walk.reduce}
