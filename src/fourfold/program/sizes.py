"""The bytes of every buffer of a program, from its name and the facts of the run."""

from typing import TYPE_CHECKING

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.model.spec import Segment

if TYPE_CHECKING:
    from fourfold.program.facts import Lowering

SCALAR_BYTES = 8


def buffer_bytes(facts: "Lowering", name: str) -> int:
    """Size of any buffer, from its name."""
    kind, _, rest = name.partition("/")
    element, layout = facts.shape.element_bytes, facts.layout
    learned = facts.model.positions == "learned"
    rotated = 0 if learned else facts.model.rope_head_dim if facts.model.is_latent else facts.model.head_dim
    if kind == "rope":
        return layout.sequence_length * rotated * element
    if kind == "batch":
        positions = SCALAR_BYTES if learned else rotated * element if facts.document_mask or layout.cp > 1 else 0
        return layout.tokens * (2 * 8 * (1 + facts.model.mtp_layers) + positions)
    if kind in ("hidden", "dhidden"):
        depths = _depths(facts, facts.by_name[rest.partition("/")[0]])
        return depths * layout.hidden_tokens * facts.model.hidden_size * element
    if kind == "router":
        return (SCALAR_BYTES + facts.shape.wide_bytes) * facts.model.num_experts
    segment = facts.by_name.get(rest.partition("/")[0])
    if kind in ("saved", "deferred") and segment is not None:
        footprint = facts.footprint(segment)
        return footprint.saved_bytes if kind == "saved" else footprint.deferred_bytes
    return _unit_bytes(facts, kind, facts.all_flats[rest])


def state_bytes(facts: "Lowering") -> int:
    """Bytes of a checkpoint: master weights and optimizer states of the full model."""
    numel = sum(segment.numel for segment in facts.segments)
    return numel * (DTYPE_BYTES[facts.master] + facts.optimizer.state_bytes(facts.master))


def _depths(facts: "Lowering", segment: Segment) -> int:
    """How many hidden states of a token the segment's input has: of the head, those of every depth of prediction."""
    return 1 + facts.model.mtp_layers if segment.kind == "head" else max(1, segment.depth)


def _unit_bytes(facts: "Lowering", kind: str, flat: FlatLayout) -> int:
    compute, master, gradient = (DTYPE_BYTES[d] for d in (facts.compute, facts.master, facts.gradients))
    sizes = {
        "params": flat.padded_numel * compute,
        "shard": flat.shard_numel * compute,
        "master": flat.shard_numel * master,
        "optimizer": flat.shard_numel * facts.optimizer.state_bytes(facts.master),
        "grad": flat.padded_numel * gradient,
        "grad_shard": flat.shard_numel * gradient,
        "reduce": _landing_bytes(facts, flat, gradient),
    }
    return sizes[kind]


def _landing_bytes(facts: "Lowering", flat: FlatLayout, gradient: int) -> int:
    """What a reduce-scatter lands in. Exchange: the others' parts of this shard. Native: the sum, before it is added to
    the shard (ZeRO-2, 3). An all-reduce works in place."""
    zero = facts.zero_of(flat.unit)
    if zero == 0:
        return 0
    if facts.transport == "native":
        return flat.shard_numel * gradient if zero >= 2 else 0
    return flat.shard_numel * (flat.num_shards - 1) * gradient
