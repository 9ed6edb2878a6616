"""A published run as the planner asks for it: model, layout, batch, number formats, machine; or why it cannot be asked."""

from dataclasses import dataclass, replace
from typing import Literal

from flops import step_flops
from fourfold.config import ModelConfig
from fourfold.config.kernel_choice import NO_CHOICE, KernelChoice
from fourfold.hardware import Device
from fourfold.validate import Prediction

MemoryKind = Literal["allocated", "reserved", "device", "unstated"]
ALTERNATE, ATTENTION_CORE = "alternate", ("core_attn",)
Offloaded = Literal["activations", "optimizer"]
StepSource = Literal["stated", "tokens", "samples", "days", "flops", "mfu"]


@dataclass(frozen=True)
class LayoutRequest:
    """Degrees and arrangement in the words of a run file's `[layout]`, with the number of microbatches a step.

    `recompute`: `none`, `selective`, `full` or `alternate` (every other block full); `recompute_modules`: the parts that the
    source names as recomputed, in its words, where it is selective (`core_attn` is the attention matrix alone)."""

    pp: int
    virtual_stages: int
    schedule: str
    dp_replicate: int
    dp_shard: int
    zero: int
    cp: int
    tp: int
    sequence_parallel: bool
    ep: int
    etp: int
    microbatch_sequences: int
    num_microbatches: int
    recompute: str = "none"
    recompute_modules: tuple[str, ...] = ()
    cp_method: str = "ring"
    outermost: str = "pp"

    def policies(self, num_layers: int) -> str | list[str]:
        """`recompute` as a run file states it. The attention core alone, which fused attention does not keep, is none."""
        if self.recompute == ALTERNATE:
            return ["full" if block % 2 else "none" for block in range(num_layers)]
        return "none" if self.recompute == "selective" and self.recompute_modules == ATTENTION_CORE else self.recompute

    def with_half_microbatches(self) -> "LayoutRequest":
        """A copy with the batch in twice as many microbatches of half as many sequences."""
        half, twice = self.microbatch_sequences // 2, 2 * self.num_microbatches
        return replace(self, microbatch_sequences=half, num_microbatches=twice)

    @property
    def dp(self) -> int:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard


@dataclass(frozen=True)
class Precision:
    """`compute`: the 16-bit (or fp32) format; `low`: None, or the flavour of low-precision GEMMs: `fp8` (one scale a
    tensor), `fp8-block`, `mxfp8`, `nvfp4`. `master`: of the optimizer's copy; `gradients`: in which they are summed."""

    compute: str = "bf16"
    low: str | None = None
    master: str = "fp32"
    gradients: str = "fp32"

    @property
    def name(self) -> str:
        """The format of the GEMMs."""
        return self.low or self.compute


@dataclass(frozen=True)
class Network:
    """`nvlink_domain`: devices that reach one another by NVLink (a node where it is not stated); `internode_bytes_per_second`: of
    one device in one direction, None where the source's text (`internode`) does not say; `assumed`: it is what such devices usually
    have."""

    devices_per_node: int
    nvlink_domain: int
    internode_bytes_per_second: float | None = None
    internode: str = ""
    assumed: bool = False


@dataclass(frozen=True)
class PublishedFigures:
    """The measured figures. `step_from`: the figure that the step time was computed from; `mfu` as reported, under
    `mfu_convention`. `time_counts`: whether the step time may be compared (regression tests run in modes that no training uses)."""

    step_seconds: float | None = None
    step_from: StepSource | None = None
    memory_bytes: float | None = None
    memory_kind: MemoryKind = "unstated"
    last_rank_alone: bool = False
    mfu: float | None = None
    mfu_convention: str | None = None
    failed: bool = False
    time_counts: bool = True


@dataclass(frozen=True)
class PublishedCase:
    """One run to predict: what a row says in the planner's words, and what it was measured to take."""

    id: str
    file: str
    source: str
    software: str
    """The software profile."""
    trainer: str
    """Framework, platform and year: what its profile is a family of."""
    model_name: str
    model: ModelConfig
    vocab_size: int
    """Before padding."""
    layout: LayoutRequest
    sequence_length: int
    global_sequences: int
    precision: Precision
    device: str
    """The key of `hardware`, which may be of no table, and has the memory that the row states."""
    hardware: Device
    num_devices: int
    network: Network
    measured: PublishedFigures
    peak_flops: float | None = None
    """FLOP/s of one device in this precision, as the source states it."""
    from_memory: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    """Settings that were filled in, and contradictions, in words."""

    # What the source leaves open

    recompute_open: bool = False
    microbatch_open: bool = False
    zero_open: bool = False
    states_open: bool = False
    """In what format weights and optimizer states are."""

    # How it runs

    kernels: KernelChoice = NO_CHOICE
    """Words that the row or the makers of its software say."""
    attention_dropout: bool = False
    """Written attention drops scores out, as GPT's kind does."""
    attention_share: float = 1.0
    """Share of causal attention's work that windows and documents leave."""
    overlap: bool | None = None
    even_stages: bool = False
    """All pipeline stages have the same number of blocks, embedding and head come on top."""
    eager: bool = False
    """The source says that nothing is compiled."""

    # What it holds

    offloaded: Offloaded | None = None
    """The part of the state that lies in the host's memory."""
    narrow_operands: bool = False
    """Activations that a GEMM reads are saved in its format."""
    moment_bytes: float | None = None
    """Bytes of an element of each optimizer state, where the row says."""

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_sequences * self.sequence_length

    @property
    def model_flops(self) -> float:
        """Model FLOPs of a step, all devices together: `step_flops` by the convention `causal`, the same for every layout."""
        model = replace(self.model, vocab_size=self.vocab_size)
        return step_flops(model, self.sequence_length, self.global_sequences)

    @property
    def num_nodes(self) -> int:
        return -(-self.num_devices // self.network.devices_per_node)

    @property
    def cell(self) -> tuple[str | int, ...]:
        """Cases with the same value differ in their layouts alone: same source, model, devices and batch."""
        return (
            self.file,
            self.source,
            self.software,
            self.model_name,
            self.model.num_layers,
            self.device,
            self.precision.name,
            self.num_devices,
            self.global_sequences,
            self.sequence_length,
        )


@dataclass(frozen=True)
class Skip:
    """Why a row is no case, in plain words."""

    reason: str


class NotACase(Exception):
    """Raised within the translation; its text is the reason of a `Skip`."""


@dataclass(frozen=True)
class SettledPrediction(Prediction):
    """`taken`: what of the layout was taken other than the case says, in words. `network_step_seconds`: where nobody states the
    network, the step at the ends of `settle.NETWORKS`."""

    taken: tuple[str, ...] = ()
    network_step_seconds: tuple[float, float] | None = None
