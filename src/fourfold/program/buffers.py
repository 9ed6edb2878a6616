"""Names and sizes of a program's buffers, and the facts of the run that the lowering passes share.

params/U      unit U's parameters, whole, in the compute format        hidden/S/m   input of segment S for microbatch m
shard/U       this rank's shard of them (ZeRO-3)                       dhidden/S/m  the gradient of that input
master/U      the shard in the master format, where formats differ     saved/S/m    what S's backward needs beside its input
moments/U     both AdamW moments of the shard                          batch/m      tokens, targets, positions
grad/U        gradients of the whole unit                              reduce/U     landing space of a reduction
grad_shard/U  reduced gradients of the shard (ZeRO-2, 3)               rope         rotary tables
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fourfold.config import DTYPE_BYTES, ModelConfig, RunConfig
from fourfold.layout import FlatLayout, Layout, flat_layouts
from fourfold.layout.mesh import DATA_AXES
from fourfold.model.footprint import Footprint, Shape, segment_footprint
from fourfold.model.spec import Segment, build_segments

Transport = Literal["exchange", "native"]


@dataclass(frozen=True)
class Lowering:
    """What lowering reads: the model, the layout, the number formats and how reductions travel.

    `transport`: `exchange` (gloo: shards are sent straight to their owners, who sum them) or `native` (NCCL's own reductions).
    """

    model: ModelConfig
    layout: Layout
    compute: str
    master: str
    gradients: str
    document_mask: bool = False
    transport: Transport = "exchange"
    moments: int = 2

    @classmethod
    def of(cls, config: RunConfig, model: ModelConfig, layout: Layout, transport: Transport = "exchange") -> "Lowering":
        precision = config.precision
        wide = "fp64" if precision.compute == "fp64" else "fp32"
        master, gradients = precision.master or wide, precision.gradients or wide
        return cls(model, layout, precision.compute, master, gradients, config.data.document_mask, transport)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        return build_segments(self.model)

    @cached_property
    def flats(self) -> dict[str, FlatLayout]:
        return flat_layouts(self.segments, self.layout)

    @cached_property
    def shape(self) -> Shape:
        layout = self.layout
        return Shape(
            layout.microbatch_sequences, layout.sequence_length, self.compute, self.gradients, self.document_mask
        )

    @property
    def zero(self) -> int:
        """The ZeRO stage that has an effect: 0 where there is nothing to shard over."""
        return self.layout.zero if self.layout.dp_shard > 1 else 0

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Axes that every gradient must be summed over."""
        return self.layout.active(DATA_AXES)

    @property
    def mixed(self) -> bool:
        """Whether the optimizer updates a copy in another format than the one computed in."""
        return self.compute != self.master

    def policy(self, segment: Segment) -> str:
        return self.layout.recompute[self.segments.index(segment)]

    def footprint(self, segment: Segment) -> Footprint:
        return self._footprints[segment.kind, self.policy(segment)]

    @cached_property
    def _footprints(self) -> dict[tuple[str, str], Footprint]:
        pairs = {(s.kind, self.policy(s)): s for s in self.segments}
        return {key: segment_footprint(s, self.model, self.shape, key[1]) for key, s in pairs.items()}

    def evaluation_workspace(self, segment: Segment) -> int:
        """Workspace of a block's forward that keeps nothing."""
        return segment_footprint(segment, self.model, self.shape, "full").forward_workspace_bytes

    @cached_property
    def _segments_by_name(self) -> dict[str, Segment]:
        return {segment.name: segment for segment in self.segments}

    def buffer_bytes(self, name: str) -> int:
        """Size of any buffer, from its name."""
        kind, _, rest = name.partition("/")
        if kind == "rope":
            return self.layout.sequence_length * self.model.head_dim * self.shape.element_bytes
        if kind == "batch":
            positions = self.model.head_dim * self.shape.element_bytes if self.document_mask else 0
            return self.shape.tokens * (2 * 8 + positions)
        if kind in ("hidden", "dhidden"):
            return self.shape.tokens * self.model.hidden_size * self.shape.element_bytes
        if kind == "saved":
            return self.footprint(self._segments_by_name[rest.partition("/")[0]]).saved_bytes
        return self._unit_bytes(kind, self.flats[rest])

    def _unit_bytes(self, kind: str, flat: FlatLayout) -> int:
        compute, master, gradient = (DTYPE_BYTES[d] for d in (self.compute, self.master, self.gradients))
        sizes = {
            "params": flat.padded_numel * compute,
            "shard": flat.shard_numel * compute,
            "master": flat.shard_numel * master,
            "moments": flat.shard_numel * master * self.moments,
            "grad": flat.padded_numel * gradient,
            "grad_shard": flat.shard_numel * gradient,
            "reduce": self._landing_bytes(flat, gradient),
        }
        return sizes[kind]

    def _landing_bytes(self, flat: FlatLayout, gradient: int) -> int:
        """What a reduce-scatter lands in. Exchange: the others' parts of this shard. Native: the sum, before it is added to
        the shard (ZeRO-2, 3). An all-reduce works in place."""
        if self.zero == 0:
            return 0
        if self.transport == "native":
            return flat.shard_numel * gradient if self.zero >= 2 else 0
        return flat.shard_numel * (self.layout.dp_shard - 1) * gradient


def hidden(segment: str, microbatch: int) -> str:
    return f"hidden/{segment}/m{microbatch}"


def dhidden(segment: str, microbatch: int) -> str:
    return f"dhidden/{segment}/m{microbatch}"


def saved(segment: str, microbatch: int) -> str:
    return f"saved/{segment}/m{microbatch}"


def batch(microbatch: int) -> str:
    return f"batch/m{microbatch}"
