"""A request to the planner: a model, a cluster, a batch; and what a layout is before it is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from fourfold.config import DTYPE_BYTES, ModelConfig, RunConfig, UserError
from fourfold.config.layout_section import LAYOUT_KEYS, LayoutKeys, LayoutSection
from fourfold.config.optimizers import AdamWSection, OptimizerSection
from fourfold.config.run_file import parse_run
from fourfold.config.schema import PrecisionSection
from fourfold.cost.kernels import Kernels
from fourfold.cost.prices import Prices, Windows, share_left
from fourfold.cost.software import SoftwareProfile
from fourfold.evidence.out_of_memory import out_of_memory
from fourfold.hardware import Cluster
from fourfold.layout import Layout, resolve_layout
from fourfold.plan.candidate import Candidate, policy_and_offload
from fourfold.plan.constraints import KEPT, NO_CONSTRAINTS, Constraints, Value, format_value, parse_value
from fourfold.program.capabilities import check_planned
from fourfold.program.resolve import resolve_step
from fourfold.program.spec import Transport
from fourfold.simulate.run_prices import (
    NO_OVERRIDES,
    SoftwareOverrides,
    executed_precision,
    prices_for,
    transport_on,
)
from fourfold.simulate.summary import MEMORY_SHARE

BF16 = PrecisionSection(compute="bf16")
ADAMW = AdamWSection()
DEFAULTS = LayoutSection()
ONE_SHARD = DEFAULTS.model_copy(update={"dp_shard": 1})
LIKELY, SAFE = 0.25, 0.05
"""Probability of running out of memory up to which a layout is likely to fit, and to which it is safe."""
MANY_STEPS = 1_000_000
"""A planned run is so long that all that is chosen at its start is worth the choice."""
NEAR = 0.07
"""How far a batch stated in tokens may be moved to a rounder number of sequences."""


@dataclass(frozen=True)
class Request:
    """One step of `model` on all devices of a cluster: `global_sequences` rows of `sequence_length` tokens.

    `template`: the prices of kernels and links there, for whatever layout. `memory_bytes`: what a device may hold at most.
    `kept`: a section with the keys of `constraints.KEPT`, the same in all layouts (`kept_keys`). `windows`: of the model's
    attention, which the runtime does not have: by their share of its work. `software_overrides`: what replaces constants of the
    software profile. `cuda_graphs`: whether steps are graphs. `constraints`: limits on the layouts. `sequence_parallel`:
    whether all that have tensor parallelism divide norms and residuals too. `overlap_experts`: whether layouts run their all-
    to-alls of experts behind another microbatch; None: where it is faster. `offload`: whether blocks may offload their
    activations. `offload_optimizer`: whether layouts have their optimizer states in the host's memory; None: where nothing fits
    otherwise, or where it is faster. `most_risk`: the probability of running out of memory up to which layouts are likely to
    fit.
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
    kept: LayoutSection = DEFAULTS
    windows: Windows | None = None
    software_overrides: SoftwareOverrides = NO_OVERRIDES
    optimizer: OptimizerSection = ADAMW
    cuda_graphs: bool = False
    constraints: Constraints = NO_CONSTRAINTS
    sequence_parallel: bool = True
    overlap_experts: bool | None = None
    offload: bool = True
    offload_optimizer: bool | None = None
    most_risk: float = LIKELY

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
        layout: LayoutKeys = DEFAULTS,
        windows: Windows | None = None,
        software_overrides: SoftwareOverrides = NO_OVERRIDES,
        optimizer: OptimizerSection = ADAMW,
        cuda_graphs: bool = False,
    ) -> "Request":
        """With the constants that ship for that cluster's device and `software` (default: fourfold's own). `document_tokens`: a
        document's mean length, where attention stays within documents. `layout`: whose keys of `constraints.KEPT` all layouts have.
        Raises `UserError`."""
        precision, software_overrides = executed_precision(precision, cluster, software, software_overrides)
        transport = transport_on(cluster)
        config = _run(
            global_sequences, sequence_length, precision, document_mask, ONE_SHARD, document_tokens, cuda_graphs
        )
        model = replace(model, max_position=max(model.max_position, sequence_length))
        check_planned(config)
        spec = resolve_step(config, model, resolve_layout(config, model), transport)
        everywhere = replace(
            spec.layout, dp_shard=cluster.devices
        )  # a machine that was measured: as when all ranks compute
        template = prices_for(config, replace(spec, layout=everywhere), cluster, software, software_overrides)
        memory_bytes = int(cluster.device.memory_bytes * memory_share)
        data = (document_mask, transport, document_tokens)
        asked = cls(
            model, template, sequence_length, global_sequences, memory_bytes, precision, *data, kept_keys(layout)
        )
        return replace(
            asked,
            windows=windows,
            software_overrides=software_overrides,
            optimizer=optimizer,
            cuda_graphs=cuda_graphs,
        )._masked()

    def on(self, cluster: Cluster) -> "Request":
        """A copy on another number of the cluster's devices. Raises `UserError`."""
        there = Request.of(
            self.model,
            cluster,
            self.sequence_length,
            self.global_sequences,
            self.precision,
            self.software.name,
            document_mask=self.document_mask,
            document_tokens=self.document_tokens,
            software_overrides=self.software_overrides,
            cuda_graphs=self.cuda_graphs,
        )
        return replace(self, template=there.template, transport=there.transport)._masked()

    def fixing(self, values: Mapping[str, Value | Sequence[Value]]) -> "Request":
        """A copy with these values of a layout's keys, or lists of them, in place of what was stated of those keys. Raises
        `UserError` for a value that no key has."""
        listed = {key: (each,) if isinstance(each, int | str) else tuple(each) for key, each in values.items()}
        for key, each in listed.items():
            for value in each:
                parse_value(key, str(value), "layout.")
        return replace(self, constraints=self.constraints.stating(listed))

    def of_length(self, sequence_length: int, global_sequences: int) -> "Request":
        """A copy with other sequences."""
        model = replace(self.model, max_position=max(self.model.max_position, sequence_length))
        asked = replace(self, model=model, sequence_length=sequence_length, global_sequences=global_sequences)
        return asked._masked()

    def _masked(self) -> "Request":
        """A copy with the share of attention's work that masks leave at this length."""
        documents = self.document_tokens if self.document_mask else None
        share = share_left(self.sequence_length, documents, self.windows)
        return replace(self, template=replace(self.template, masked_share=share))

    @property
    def cluster(self) -> Cluster:
        """The cluster that layouts are for."""
        return self.template.cluster

    @property
    def kernels(self) -> Kernels:
        """Prices of kernels on one of its devices."""
        return self.template.kernels

    @property
    def software(self) -> SoftwareProfile:
        """Profile of the software that runs the layouts."""
        return self.template.software

    @property
    def devices(self) -> int:
        """Number of devices, all of which a layout uses."""
        return self.cluster.devices

    @property
    def likely_bytes(self) -> int:
        """The most that a device may hold of a layout that is likely to fit (`evidence.out_of_memory`)."""
        risk = out_of_memory(self.template)
        likely = self.cluster.device.memory_bytes * risk.share(self.most_risk) if risk is not None else float("inf")
        return int(min(self.memory_bytes, likely))

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
        """Bytes of a master weight beside the weight that is computed with."""
        return 2 if self.precision.splits_master else DTYPE_BYTES[self.precision.master_format]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of the gradients."""
        return DTYPE_BYTES[self.precision.gradients_format]

    @property
    def mixed(self) -> bool:
        """Whether the optimizer updates a copy of the parameters in another format."""
        return self.precision.master_format != self.precision.compute

    def section(self, layout: "Candidate") -> LayoutSection:
        """A layout as the run file's `[layout]`."""
        split = self.sequence_parallel and layout.tp > 1
        kept = {key: getattr(self.kept, key) for key in KEPT}
        keys = {key: getattr(layout, key) for key in LAYOUT_KEYS} | kept | {"sequence_parallel": split}
        if layout.activations:
            ways = [policy_and_offload(way) for way in layout.activations]
            keys["recompute"] = [policy for policy, _ in ways]
            if any(away for _, away in ways):
                keys["offload"] = ["activations" if away else "none" for _, away in ways]
        return LayoutSection.model_validate(keys)

    @property
    def can_offload(self) -> bool:
        """Whether anything can wait in the host's memory: only fourfold's own software copies it there, and on a processor it is
        the same memory."""
        return self.software.is_own and self.cluster.device.has_host_link

    @property
    def states_may_leave(self) -> bool:
        """Whether it is open if optimizer states lie in the host's memory."""
        return self.offload_optimizer is None and self.can_offload

    @property
    def host_bytes(self) -> float:
        """Bytes of the host's memory that are there for one device."""
        return self.cluster.host_memory_bytes_per_device or float("inf")

    def permits(self, layout: Candidate) -> bool:
        """Whether a layout keeps to the constraints."""
        if self.offload_optimizer is not None and layout.offload_optimizer != self.offload_optimizer:
            return False
        if self.overlap_experts is not None and layout.overlap_experts != self.overlap_experts:
            return False
        if layout.overlap_experts and not self.can_overlap(layout):
            return False
        left_over = self.global_sequences // (layout.dp * layout.microbatch_sequences) % layout.pp
        split = self.sequence_parallel and layout.tp > 1
        known = vars(layout) | {"dp": layout.dp, "left_over": left_over, "sequence_parallel": split}
        if layout.tp == 1:
            del known["sequence_parallel"]  # means nothing
        return self.constraints.permits(known)

    def can_overlap(self, layout: Candidate) -> bool:
        """Whether it has all-to-alls of experts, and another microbatch for them to run behind."""
        return layout.ep > 1 and self.global_sequences > layout.dp * layout.microbatch_sequences

    @property
    def overlap_is_open(self) -> bool:
        """Whether the software runs experts behind another microbatch, the model has some, and nobody says whether layouts do."""
        return self.overlap_experts is None and self.software.is_own and self.model.num_experts > 0

    @property
    def flags(self) -> dict[str, str]:
        """Keys of `[layout]` that all layouts have as stated, beside the constraints; values are as a command line has them."""
        stated = {"overlap_experts": self.overlap_experts, "offload_optimizer": self.offload_optimizer}
        found = {key: format_value(value) for key, value in stated.items() if value is not None}
        return found if self.offload else {**found, "offload": "none"}

    def prices(self, layout: Layout) -> Prices:
        """For the ranks of a layout."""
        return replace(self.template, layout=layout)

    def run(self, layout: LayoutSection) -> RunConfig:
        """The run of one layout. The model goes beside it, resolved."""
        run = _run(self.global_sequences, self.sequence_length, self.precision, self.document_mask, layout)
        return run.model_copy(update={"optimizer": self.optimizer})


def kept_keys(layout: LayoutKeys) -> LayoutSection:
    """A section with the keys of a layout that the search leaves as they are."""
    return LayoutSection.model_validate({key: getattr(layout, key) for key in KEPT})


def _run(
    global_sequences: int,
    sequence_length: int,
    precision: PrecisionSection,
    document_mask: bool,
    layout: LayoutSection,
    document_tokens: int | None = None,
    cuda_graphs: bool = False,
) -> RunConfig:
    table = {
        "batch": {"global_sequences": global_sequences, "sequence_length": sequence_length, "steps": MANY_STEPS},
        "data": {"document_mask": document_mask} | ({"document_tokens": document_tokens} if document_tokens else {}),
        "run": {"cuda_graphs": cuda_graphs},
    }
    return parse_run(table, source="plan").model_copy(update={"layout": layout, "precision": precision})


def batch_sequences(tokens: float, sequence_length: int, devices: int = 1) -> int:
    """A batch of about so many tokens: the number of sequences within 7 % of it that has the most factors of two, the nearest of
    those; or of two and of the devices' odd part, where more devices divide that. `16M` of 8,192 are 1,953 sequences; 2,048 is
    what is meant, 1,920 on 60 devices. A multiple of 8 is left as it is. Raises `UserError`."""
    exact = tokens / sequence_length
    if exact < 1:
        raise UserError(
            f"--batch-tokens {tokens:g}: less than one sequence of {sequence_length}; a value that works: "
            f"--batch-tokens {sequence_length}"
        )
    if exact == int(exact) and int(exact) % 8 == 0:
        return int(exact)
    found = _rounded(exact, 1) or max(1, round(exact))
    among = _rounded(exact, devices // (devices & -devices))
    return among if among is not None and gcd(among, devices) > gcd(found, devices) else found


def _rounded(exact: float, odd: int) -> int | None:
    """The multiple of `odd` near enough that has the most factors of two."""
    for power in range(int(exact).bit_length(), -1, -1):
        step = 2**power * odd
        nearest = max(step, round(exact / step) * step)
        if abs(nearest - exact) <= NEAR * exact:
            return nearest
    return None
