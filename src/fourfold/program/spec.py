"""StepSpec, from which a training step is compiled, and how a run's config becomes one."""

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from fourfold.config import DTYPE_BYTES, ModelConfig
from fourfold.config.optimizers import AdamWSection, OptimizerSpec
from fourfold.config.schema import FaultsSection, MetricsSection
from fourfold.layout import Layout
from fourfold.model.footprint import Shape
from fourfold.model.low_precision import GemmRecipe
from fourfold.model.spec import Segment, build_segments
from fourfold.program.schedule import find_schedule

Transport = Literal["exchange", "native"]
Setting = TypeVar("Setting")
_FLOPS_PER_RECEIVED_BYTE: dict[Transport, int] = {"exchange": 100, "native": 10_000}


@dataclass(frozen=True)
class StepSpec:
    """The model, the layout, the number formats and how reductions travel; the same on every rank (`resolve_step` makes it).

    `checksum`, `replay`: whether the step compares replicas, and computes a microbatch of every segment twice.
    `sampled`: what the step measures of every layer, none in most steps.
    `settings`: what capabilities keep of the run file, a record each (`setting`).
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
    checksum: bool = False
    replay: bool = False
    sampled: tuple[str, ...] = ()
    recipe: GemmRecipe | None = None
    settings: tuple[object, ...] = ()

    def setting(self, kind: type[Setting]) -> Setting | None:
        """A capability's record of this kind; None where the run has not that capability."""
        return next((each for each in self.settings if isinstance(each, kind)), None)

    def at_step(self, step: int, faults: FaultsSection, metrics: MetricsSection | None = None) -> "StepSpec":
        """The step with the checks, and the measurements, that are due in step number `step`, from 0."""

        def due(every: int) -> bool:
            return every > 0 and (step + 1) % every == 0

        sampled = tuple(metrics.of) if metrics is not None and due(metrics.every_steps) else ()
        return replace(
            self, checksum=due(faults.checksum_every_steps), replay=due(faults.replay_every_steps), sampled=sampled
        )

    @property
    def flops_per_received_byte(self) -> int:
        """Arithmetic that takes about as long as a byte from another rank: a fixed balance, so that planner and ranks, on whatever
        devices, decide alike what to compute and what to send."""
        return _FLOPS_PER_RECEIVED_BYTE[self.transport]

    @property
    def overlaps_experts(self) -> bool:
        """Whether rows for experts travel behind another microbatch's computation. A step that computes twice does without."""
        return self.layout.overlap_experts and self.layout.ep > 1 and not self.replay

    @property
    def computations_per_pass(self) -> int:
        """How many computations a pass over a segment counts as, where instructions stand so many ahead of a use: the parts of one
        that overlaps."""
        return 3 if self.overlaps_experts else 1

    @property
    def microbatches_per_slot(self) -> int:
        """How many microbatches the schedule orders as one: two where they overlap and it does not pair passes itself."""
        return 2 if self.overlaps_experts and not find_schedule(self.layout.schedule).pairs_passes else 1

    def with_microbatches(self, number: int) -> "StepSpec":
        """The step with another number of microbatches."""
        return replace(self, layout=replace(self.layout, num_microbatches=number))

    def with_sequences(self, number: int) -> "StepSpec":
        """The step with another global batch: as many microbatches as hold so many sequences."""
        return self.with_microbatches(-(-number // (self.layout.data_degree * self.layout.microbatch_sequences)))

    def for_evaluation(self, sequences: int) -> "StepSpec":
        """An evaluation over so many sequences, the last microbatches filled with ignored rows."""
        return self.with_sequences(sequences)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments of the model, in forward order."""
        return build_segments(self.model)

    @property
    def mixed(self) -> bool:
        """Whether the optimizer updates a copy in another format than the one computed in."""
        return self.compute != self.master

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint: weights and optimizer states of every parameter, in the master format."""
        units = [unit for segment in self.segments for unit in segment.own]
        numel, matrices = sum(unit.numel for unit in units), sum(p.numel for unit in units for p in unit.matrices)
        return numel * DTYPE_BYTES[self.master] + self.state_bytes(numel, matrices)

    def state_bytes(self, numel: int, matrices: int) -> int:
        """Bytes of the optimizer's state of this many parameters, `matrices` of them elements of hidden matrices."""
        optimizer, master = self.optimizer, self.master
        return (numel - matrices) * optimizer.state_bytes(master) + matrices * optimizer.state_bytes(
            master, matrix=True
        )

    def update_bytes(self, numel: int, matrices: int = 0) -> int:
        """Bytes that the optimizer reads and writes to update this many parameters, `matrices` of them elements of hidden
        matrices."""
        formats, optimizer = (self.compute, self.master, self.gradients), self.optimizer
        return (numel - matrices) * optimizer.update_bytes(*formats) + matrices * optimizer.update_bytes(*formats, True)

    @property
    def shape(self) -> Shape:
        """One microbatch on one rank, as segments see it."""
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
            recipe=self.recipe,
        )


def transport_on(device: str) -> Transport:
    """How ranks on devices of a type exchange: accelerators by NCCL's collectives, processors by exchanges over gloo."""
    return "native" if device == "cuda" else "exchange"
