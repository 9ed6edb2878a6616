"""The bytes of the buffers that no capability owns, from their names; `capabilities.py` has those of all."""

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.model.layers import reads_positions, ropes_of
from fourfold.model.spec import Segment
from fourfold.model.work import SavedParts
from fourfold.program.buffers import CORE_BUFFERS, device
from fourfold.program.spec import StepSpec
from fourfold.program.totals import SCALAR_BYTES
from fourfold.program.view import RankView


def core_buffer_bytes(view: RankView, name: str) -> int:
    """Size of a buffer of the core's on a rank. Raises `KeyError` for a name that the rank has not."""
    kind, _, rest = device(name).partition("/")
    spec = view.spec
    element, layout, model = DTYPE_BYTES[spec.compute], spec.layout, spec.model
    positions, rotated = reads_positions(model, spec.document_mask), sum(rope.width for rope in ropes_of(model))
    if kind == "rope":
        return layout.sequence_length * rotated * element
    if kind == "batch":
        numbers = layout.tokens * (2 * (1 + model.mtp_layers) + positions) * SCALAR_BYTES
        row = layout.tokens // layout.microbatch_sequences * rotated * element
        tables = layout.microbatch_sequences if spec.document_mask else 1 if layout.cp > 1 else 0
        return numbers + tables * row
    if kind == "router":
        return (SCALAR_BYTES + spec.shape.accumulation_bytes) * model.num_experts
    owner = rest.partition("/")[0]
    if kind in ("hidden", "dhidden"):
        return hidden_bytes(spec, view.stages.segments[owner])
    segment = view.stages.segments.get(owner)
    if kind in ("saved", "deferred") and segment is not None:
        return view.footprint(segment).saved_bytes if kind == "saved" else view.halves(segment).deferred_bytes
    return core_unit_bytes(spec, kind, view.flats[rest])


def saved_parts(view: RankView, kind: str) -> dict[str, SavedParts]:
    """Parts of what each block saves, in a program that trains."""
    if kind != "train":
        return {}
    return {s.name: view.footprint(s).saved_parts for s in view.segments if s.kind == "block"}


def hidden_bytes(spec: StepSpec, segment: Segment) -> int:
    """Size of a segment's input for one microbatch: of the head, the hidden states of every depth of prediction."""
    depths = 1 + spec.model.mtp_layers if segment.kind == "head" else max(1, segment.depth)
    return depths * spec.layout.hidden_tokens * spec.model.hidden_size * DTYPE_BYTES[spec.compute]


def core_unit_bytes(spec: StepSpec, kind: str, flat: FlatLayout) -> int:
    """Size of one of a unit's buffers. Raises `KeyError` for a kind that units have not."""
    if kind == "reduce":
        return _staging_bytes(spec, flat)
    if kind == "optimizer":
        return spec.state_bytes(flat.shard_numel, fewest_matrix_elements(flat))
    row = CORE_BUFFERS[kind]
    if row.numel is None or row.format is None:
        raise KeyError(kind)
    size: int = getattr(flat, row.numel) * DTYPE_BYTES[getattr(spec, row.format)]
    return size


def fewest_matrix_elements(flat: FlatLayout) -> int:
    """Elements of hidden matrices in the last shard, which has the most of all else."""
    return max(0, flat.shard_numel - (flat.padded_numel - flat.matrix_numel))


def _staging_bytes(spec: StepSpec, flat: FlatLayout) -> int:
    """Bytes of a reduce-scatter's staging buffer. Exchange: the others' parts of this shard. Native: the sum, before it is added
    to the shard (ZeRO-2, 3). An all-reduce works in place."""
    if flat.zero == 0:
        return 0
    shard = flat.shard_numel * DTYPE_BYTES[spec.gradients]
    if spec.transport == "native":
        return shard if flat.zero >= 2 else 0
    return shard * (flat.num_shards - 1)


def state_buffers(view: RankView, unit: str) -> tuple[str, ...]:
    """Buffers of the device that the optimizer keeps for a unit beside its parameters."""
    return (f"optimizer/{unit}", *((f"master/{unit}",) if view.spec.mixed else ()))
