"""The facts of a run that the lowering passes share: its segments, stages, units, groups, and the sizes of its buffers."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from fourfold.config import ModelConfig, RunConfig
from fourfold.config.optimizers import AdamWSection, OptimizerSpec
from fourfold.layout import FlatLayout, Layout, flat_layouts
from fourfold.layout.mesh import DATA_AXES
from fourfold.model.footprint import Footprint, Shape, segment_footprint
from fourfold.model.spec import Domain, Segment, build_segments
from fourfold.model.traffic import Traffic
from fourfold.program.arithmetic import segment_costs, stage_flops
from fourfold.program.instruction import Collective, Instruction
from fourfold.program.schedule import Compute, check_schedule, find_schedule, schedule_orders, stage_ranks
from fourfold.program.sizes import SCALAR_BYTES, buffer_bytes
from fourfold.program.stages import stage_sizes

Transport = Literal["exchange", "native"]

_OF_COMPUTATION = ("_footprints", "_by_segment", "collectives_made", "computed")
_OF_THE_MODEL = ("segments", "by_name", "following")
_CACHES = (*_OF_COMPUTATION, "_sizes", "_zero_of")
_FOUND = (*_OF_THE_MODEL, "shape", "all_flats", *_CACHES)
"""What is the same on every rank and for any number of microbatches, and dear."""


@dataclass(frozen=True)
class Lowering:
    """What lowering reads: the model, the layout, the number formats and how reductions travel; seen from one pipeline rank.

    `transport`: `exchange` (gloo: shards are sent straight to their owners, who sum them) or `native` (NCCL's own reductions).
    """

    model: ModelConfig
    layout: Layout
    compute: str
    master: str
    gradients: str
    document_mask: bool = False
    transport: Transport = "exchange"
    optimizer: OptimizerSpec = AdamWSection.spec
    pp_rank: int = 0

    @classmethod
    def of(cls, config: RunConfig, model: ModelConfig, layout: Layout, transport: Transport = "exchange") -> "Lowering":
        """The facts of a run; divides the segments among the stages. Raises `UserError` for a schedule that cannot be."""
        precision = config.precision
        master, gradients = precision.master_format, precision.gradients_format
        check_schedule(layout.schedule, layout.pp, layout.virtual_stages, layout.num_microbatches)
        formats = (precision.compute, master, gradients)
        facts = cls(model, layout, *formats, config.data.document_mask, transport, config.optimizer.spec)
        placed = replace(
            layout,
            stages=stage_sizes(config.layout.segments_per_stage, segment_costs(facts), layout, model.mtp_layers),
            stage_ranks=stage_ranks(layout.schedule, layout.pp, layout.virtual_stages),
        )
        return replace(facts, layout=placed)

    def at(self, pp_rank: int) -> "Lowering":
        """The same run seen from another pipeline rank."""
        return self if pp_rank == self.pp_rank else self._sharing(replace(self, pp_rank=pp_rank), (*_FOUND, "orders"))

    def with_microbatches(self, number: int) -> "Lowering":
        """The same run with another number of microbatches a step."""
        return self._sharing(replace(self, layout=replace(self.layout, num_microbatches=number)), _FOUND)

    def computing_like(self, other: "Lowering") -> "Lowering":
        """This run with what another has found of all that does not depend on how data parallelism is divided. The two must differ
        in that alone: in `dp_replicate`, `dp_shard`, `zero` and the order of the mesh's axes."""
        return other._sharing(self, (*_OF_THE_MODEL, "shape", *_OF_COMPUTATION, "orders"))

    def _sharing(self, other: "Lowering", names: tuple[str, ...]) -> "Lowering":
        """The other with what this one has found, or will find, that is the same for both."""
        other.__dict__.update({name: getattr(self, name) for name in names if name in self.__dict__ or name in _CACHES})
        return other

    # Segments and stages

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """All segments of the model."""
        return build_segments(self.model)

    @cached_property
    def by_name(self) -> dict[str, Segment]:
        return {segment.name: segment for segment in self.segments}

    @cached_property
    def following(self) -> dict[str, str]:
        """Each segment's successor."""
        return {a.name: b.name for a, b in zip(self.segments, self.segments[1:], strict=False)}

    @cached_property
    def stage_bounds(self) -> tuple[tuple[int, int], ...]:
        """Every stage's segments as [start, end)."""
        stages = self.layout.stages or (len(self.segments),)
        ends = [sum(stages[: i + 1]) for i in range(len(stages))]
        return tuple((end - size, end) for end, size in zip(ends, stages, strict=True))

    def stage_segments(self, stage: int) -> tuple[Segment, ...]:
        start, end = self.stage_bounds[stage]
        return self.segments[start:end]

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """The stage of every segment."""
        return {s.name: stage for stage in range(len(self.stage_bounds)) for s in self.stage_segments(stage)}

    @cached_property
    def local_stages(self) -> tuple[int, ...]:
        """Stages on this pipeline rank, in model order."""
        return tuple(stage for stage, rank in enumerate(self.layout.stage_ranks) if rank == self.pp_rank)

    @cached_property
    def local_segments(self) -> tuple[Segment, ...]:
        return tuple(segment for stage in self.local_stages for segment in self.stage_segments(stage))

    def boundary(self, segment: str) -> int | None:
        """The pipeline rank that a segment's input comes from; None where it is made on the segment's own rank."""
        stage = self.stage_of[segment]
        if stage == 0 or self.stage_segments(stage)[0].name != segment:
            return None
        before, own = self.layout.stage_ranks[stage - 1], self.layout.stage_ranks[stage]
        return before if before != own else None

    @cached_property
    def orders(self) -> tuple[tuple[Compute, ...], ...]:
        """The compute order of every pipeline rank."""
        layout = self.layout
        times = stage_flops(self) if find_schedule(layout.schedule).needs_times else None
        return schedule_orders(layout.schedule, layout.pp, layout.virtual_stages, layout.num_microbatches, times)

    # Units

    @cached_property
    def all_flats(self) -> dict[str, FlatLayout]:
        """Every unit of the model."""
        return flat_layouts(self.segments, self.layout)

    @cached_property
    def flats(self) -> dict[str, FlatLayout]:
        """The units that this pipeline rank holds: its segments' own, and what a tied head reads."""
        names = [unit for segment in self.local_segments for unit in (u.name for u in segment.own)]
        names += [unit for segment in self.local_segments for unit in segment.units]
        return {name: self.all_flats[name] for name in dict.fromkeys(names)}

    @property
    def ties_embedding(self) -> bool:
        """Whether the last stage reads the embedding."""
        return self.model.tie_embeddings or self.model.mtp_layers > 0

    @cached_property
    def tied_unit(self) -> str | None:
        """The unit that two pipeline ranks share, where this is one of them: the embedding's, which tied heads and modules of
        multi-token prediction read too."""
        tied = self.ties_embedding and self.layout.degree("tied") > 1
        return "embed" if tied and self.pp_rank in self.layout.tied_ranks else None

    @cached_property
    def moe_segments(self) -> tuple[Segment, ...]:
        """This pipeline rank's mixtures of experts."""
        return tuple(segment for segment in self.local_segments if segment.moe)

    # Parallelism

    def shard_axes(self, unit: str) -> tuple[str, ...]:
        """The active axes over which ZeRO shards the unit."""
        return self.layout.shard_axes(self.all_flats[unit].domain)

    def zero_of(self, unit: str) -> int:
        """The ZeRO stage that has an effect on the unit: 0 where there is nothing to shard over."""
        found = self._zero_of.get(unit)
        if found is None:
            found = self._zero_of[unit] = self.layout.zero if self.shard_axes(unit) else 0
        return found

    def gradient_axes(self, unit: str) -> tuple[str, ...]:
        """Active axes that the unit's gradient must be summed over whole."""
        domain: Domain = self.all_flats[unit].domain
        return self.layout.active(DATA_AXES if domain == "dense" else ("dp_replicate", "edp"))

    def gradient_buffer(self, unit: str) -> str:
        """Where the unit's reduced gradient lies."""
        return f"{'grad_shard' if self.zero_of(unit) >= 2 else 'grad'}/{unit}"

    def values_buffer(self, unit: str) -> str:
        """What the optimizer updates, in the compute format."""
        return f"{'shard' if self.zero_of(unit) == 3 else 'params'}/{unit}"

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Active axes whose ranks see different tokens."""
        return self.layout.active(DATA_AXES)

    @property
    def loss_axes(self) -> tuple[str, ...]:
        """Active axes over which the loss, for the record, is spread; routers' auxiliary losses over `tp` too."""
        return self.layout.active(("pp", *DATA_AXES, *(("tp",) if self.model.num_experts else ())))

    @property
    def router_axes(self) -> tuple[str, ...]:
        """Active axes whose ranks route different tokens, or have other routers."""
        return self.layout.active(("pp", *DATA_AXES, "tp"))

    @cached_property
    def router_loads_bytes(self) -> int:
        """How many tokens chose each expert, of all routers of the model."""
        return SCALAR_BYTES * self.model.num_experts * sum(segment.moe for segment in self.segments)

    @property
    def norm_axes(self) -> tuple[str, ...]:
        """Active axes over which different parts of the gradient lie: the global norm is summed over them."""
        layout = self.layout
        spread = layout.zero > 0 or layout.ep * layout.etp > 1
        return layout.active(("pp", *(("dp_shard", "cp") if spread else ()), "tp"))

    @property
    def loss_bytes(self) -> int:
        """The recorded loss, the routers' balance and z losses beside it, and those of modules of multi-token prediction."""
        return SCALAR_BYTES * ((3 if self.model.num_experts else 1) + self.model.mtp_layers)

    @property
    def count_bytes(self) -> int:
        """The numbers of valid targets, of every depth of prediction."""
        return SCALAR_BYTES * (1 + self.model.mtp_layers)

    # Sizes

    @cached_property
    def shape(self) -> Shape:
        layout = self.layout
        return Shape(
            sequences=layout.microbatch_sequences,
            sequence_length=layout.sequence_length,
            compute=self.compute,
            gradients=self.gradients,
            document_mask=self.document_mask,
            tp=layout.tp,
            sequence_parallel=layout.sequence_parallel,
            tp_copies=layout.tp_copy,
            cp_ring=layout.cp_ring,
            cp_ulysses=layout.cp_ulysses,
            cp_gather=layout.cp_method == "all_gather",
            ep=layout.ep,
            etp=layout.etp,
            exchange=self.transport == "exchange",
        )

    @property
    def mixed(self) -> bool:
        """Whether the optimizer updates a copy in another format than the one computed in."""
        return self.compute != self.master

    @cached_property
    def _policies(self) -> dict[str, str]:
        return {s.name: p for s, p in zip(self.segments, self.layout.recompute, strict=True)}

    def policy(self, segment: Segment) -> str:
        return self._policies[segment.name]

    def footprint(self, segment: Segment) -> Footprint:
        found = self._by_segment.get(segment.name)
        if found is None:
            found = self._by_segment[segment.name] = self._footprint(segment, self.policy(segment))
        return found

    def evaluation_workspace(self, segment: Segment) -> int:
        """Workspace of a block's forward that keeps nothing."""
        return self._footprint(segment, "full").forward_workspace_bytes

    def _footprint(self, segment: Segment, policy: str) -> Footprint:
        key = (segment.kind, segment.moe, segment.depth, policy)
        found = self._footprints.get(key)
        if found is None:
            found = self._footprints[key] = segment_footprint(segment, self.model, self.shape, policy)
        return found

    @cached_property
    def _footprints(self) -> dict[tuple[str, bool, int, str], Footprint]:
        """By kind of segment and policy, as far as they were asked for."""
        return {}

    # What was asked for once; the same on every rank

    @cached_property
    def _by_segment(self) -> dict[str, Footprint]:
        return {}

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {}

    @cached_property
    def _zero_of(self) -> dict[str, int]:
        return {}

    @cached_property
    def collectives_made(self) -> dict[int, tuple[tuple[Traffic, ...], tuple[Collective, ...]]]:
        """What the passes over segments send, by the identity of what they declare."""
        return {}

    @cached_property
    def computed(self) -> dict[tuple[int, int], list[Instruction]]:
        """By number of microbatches and pipeline rank, what the rank computes and sends to others."""
        return {}

    def buffer_bytes(self, name: str) -> int:
        """Size of any buffer, from its name. Raises `KeyError` for a name that the run has not."""
        kind = name.rpartition("/")[0] if name.count("/") == 2 else name  # a segment's of every microbatch is as large
        size = self._sizes.get(kind)
        if size is None:
            size = self._sizes[kind] = buffer_bytes(self, name)
        return size
