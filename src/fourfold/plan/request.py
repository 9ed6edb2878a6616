"""A request to the planner: a model, a cluster, a batch; and what a layout is before it is one."""

from dataclasses import dataclass, replace

from fourfold.config import DTYPE_BYTES, ModelConfig, RunConfig
from fourfold.config.optimizers import AdamWSection, OptimizerSection
from fourfold.config.run_file import parse_run
from fourfold.config.schema import LayoutSection, PrecisionSection
from fourfold.cost.kernels import Kernels
from fourfold.cost.masks import Windows, share_left
from fourfold.cost.prices import Prices
from fourfold.cost.software import SoftwareProfile
from fourfold.hardware import Cluster
from fourfold.layout import Layout, resolve_layout
from fourfold.plan.candidate import Candidate
from fourfold.program.spec import Transport, resolve_step
from fourfold.simulate.run_prices import NO_OVERRIDES, SoftwareOverrides, prices_for, transport_on

BF16 = PrecisionSection(compute="bf16")
ADAMW = AdamWSection()
MEMORY_SHARE = 0.94
"""Share of a device's memory that a layout may fill: the rest is the driver's, and what an allocator cannot use."""


@dataclass(frozen=True)
class Request:
    """One step of `model` on all devices of a cluster: `global_sequences` rows of `sequence_length` tokens.

    `template`: the prices of kernels and links there, for whatever layout. `memory_bytes`: what a device may hold at most.
    `prefetch`: as in `LayoutSection`, the same for all layouts. `windows`: of the model's attention, which the runtime does not
    have: by their share of its work. `software_overrides`: what replaces constants of the software profile.
    """

    model: ModelConfig
    template: Prices
    sequence_length: int
    global_sequences: int
    memory_bytes: int
    precision: PrecisionSection = BF16
    document_mask: bool = False
    transport: Transport = "native"
    document_tokens: int | None = None
    prefetch: int = 1
    windows: Windows | None = None
    software_overrides: SoftwareOverrides = NO_OVERRIDES
    optimizer: OptimizerSection = ADAMW

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        cluster: Cluster,
        sequence_length: int,
        global_sequences: int,
        precision: PrecisionSection = BF16,
        software: str | None = None,
        memory_share: float = MEMORY_SHARE,
        document_mask: bool = False,
        document_tokens: int | None = None,
        prefetch: int = 1,
        windows: Windows | None = None,
        software_overrides: SoftwareOverrides = NO_OVERRIDES,
        optimizer: OptimizerSection = ADAMW,
    ) -> "Request":
        """With the constants that ship for that cluster's device and `software` (default: fourfold's own). `document_tokens`: a
        document's mean length, where attention stays within documents. Raises `UserError`."""
        transport = transport_on(cluster)
        config = _run(
            global_sequences, sequence_length, precision, document_mask, LayoutSection(dp_shard=1), document_tokens
        )
        model = replace(model, max_position=max(model.max_position, sequence_length))
        spec = resolve_step(config, model, resolve_layout(config, model), transport)
        everywhere = replace(
            spec.layout, dp_shard=cluster.devices
        )  # a machine that was measured: as when all ranks compute
        template = prices_for(config, replace(spec, layout=everywhere), cluster, software, software_overrides)
        memory_bytes = int(cluster.device.memory_bytes * memory_share)
        data = (document_mask, transport, document_tokens)
        asked = cls(model, template, sequence_length, global_sequences, memory_bytes, precision, *data, prefetch)
        return replace(asked, windows=windows, software_overrides=software_overrides, optimizer=optimizer)._masked()

    def on(self, cluster: Cluster) -> "Request":
        """The same on another number of the cluster's devices. Raises `UserError`."""
        asked = Request.of(
            self.model,
            cluster,
            self.sequence_length,
            self.global_sequences,
            self.precision,
            self.software.name,
            document_mask=self.document_mask,
            document_tokens=self.document_tokens,
            prefetch=self.prefetch,
            windows=self.windows,
            software_overrides=self.software_overrides,
            optimizer=self.optimizer,
        )
        return replace(asked, memory_bytes=self.memory_bytes)

    def of_length(self, sequence_length: int, global_sequences: int) -> "Request":
        """The same with other sequences."""
        model = replace(self.model, max_position=max(self.model.max_position, sequence_length))
        asked = replace(self, model=model, sequence_length=sequence_length, global_sequences=global_sequences)
        return asked._masked()

    def _masked(self) -> "Request":
        """The same with the share of attention's work that masks leave at this length."""
        documents = self.document_tokens if self.document_mask else None
        share = share_left(self.sequence_length, documents, self.windows)
        return replace(self, template=replace(self.template, masked_share=share))

    @property
    def cluster(self) -> Cluster:
        return self.template.cluster

    @property
    def kernels(self) -> Kernels:
        return self.template.kernels

    @property
    def software(self) -> SoftwareProfile:
        return self.template.software

    @property
    def devices(self) -> int:
        return self.cluster.devices

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_sequences * self.sequence_length

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in the compute format."""
        return self.template.element_bytes

    @property
    def master_bytes(self) -> int:
        """Bytes of a master weight."""
        return DTYPE_BYTES[self.precision.master_format]

    @property
    def gradient_bytes(self) -> int:
        return DTYPE_BYTES[self.precision.gradients_format]

    @property
    def mixed(self) -> bool:
        """Whether the optimizer updates a copy of the parameters in another format."""
        return self.precision.master_format != self.precision.compute

    def section(self, layout: "Candidate") -> LayoutSection:
        """A layout as the run file's `[layout]`."""
        return layout.section().model_copy(update={"prefetch": self.prefetch})

    def prices(self, layout: Layout) -> Prices:
        """For the ranks of a layout."""
        return replace(self.template, layout=layout)

    def run(self, layout: LayoutSection) -> RunConfig:
        """The run of one layout. The model goes beside it, resolved."""
        run = _run(self.global_sequences, self.sequence_length, self.precision, self.document_mask, layout)
        return run.model_copy(update={"optimizer": self.optimizer})


def _run(
    global_sequences: int,
    sequence_length: int,
    precision: PrecisionSection,
    document_mask: bool,
    layout: LayoutSection,
    document_tokens: int | None = None,
) -> RunConfig:
    table = {
        "batch": {"global_sequences": global_sequences, "sequence_length": sequence_length, "steps": 1},
        "data": {"document_mask": document_mask} | ({"document_tokens": document_tokens} if document_tokens else {}),
    }
    return parse_run(table, source="plan").model_copy(update={"layout": layout, "precision": precision})
