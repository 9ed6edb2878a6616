"""A published row, typed and nothing filled in: None (or an empty text) where its source states nothing."""

from dataclasses import dataclass

GIGABYTES = "unstated, in GB"
"""Kind of a memory figure whose counter is not stated, nor whether a GB is 1e9 bytes or 2^30."""


@dataclass(frozen=True)
class StatedModel:
    """Dimensions in elements. `gated`: the feed-forward has a gate; `is_mla`: multi-head latent attention; `hybrid`: some layers
    are neither attention nor feed-forward. `bias`, `norm` and `positions` are known of rows that give a trainer's flags."""

    name: str = ""
    num_layers: int | None = None
    hidden_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    ffn_size: int | None = None
    vocab_size: int | None = None
    gated: bool | None = None
    tied: bool | None = None
    activation: str | None = None
    bias: bool | None = None
    norm: str | None = None
    positions: str | None = None
    is_mla: bool = False
    query_rank: int | None = None
    key_value_rank: int | None = None
    nope_head_dim: int | None = None
    rope_head_dim: int | None = None
    value_head_dim: int | None = None
    num_experts: int | None = None
    top_k: int | None = None
    moe_ffn_size: int | None = None
    shared_ffn_size: int | None = None
    dense_layers: int | None = None
    moe_period: int | None = None
    window: int | None = None
    full_layers: int | None = None
    mtp_layers: int | None = None
    hybrid: bool = False


@dataclass(frozen=True)
class StatedHardware:
    """`memory_gb` in 1e9 bytes as vendors print it; peaks in FLOP/s; `internode` as the source words it."""

    device: str = ""
    devices_per_node: int | None = None
    nvlink_domain: int | None = None
    memory_gb: float | None = None
    peak_bf16_flops: float | None = None
    peak_fp8_flops: float | None = None
    internode: str = ""


@dataclass(frozen=True)
class StatedLayout:
    """Degrees. `shard_group`: ranks that share one copy of the optimizer's state (ZeRO-1 group, FSDP group). `cp_text`: how
    context parallelism is done."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    virtual_stages: int | None = None
    layers_per_virtual_stage: int | None = None
    zero: int | None = None
    zero_text: str = ""
    fsdp: bool = False
    shard_group: int | None = None
    sequence_parallel: bool | None = None
    cp_text: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the source says nothing of the layout."""
        return self == StatedLayout()


@dataclass(frozen=True)
class ReportedFigures:
    """Times in seconds, rates per second, `mfu` as a fraction. `memory_kind`: `allocated` and `reserved` (the allocator's own
    peaks), `device` (what the driver shows), `unstated`, or `GIGABYTES`; `last_rank_alone`: the memory is that of the last rank
    of the job."""

    step_seconds: float | None = None
    tokens_per_second_per_device: float | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    samples_per_second_per_device: float | None = None
    days_for_300e9_tokens: float | None = None
    flops_per_second_per_device: float | None = None
    flops_kind: str = ""
    mfu: float | None = None
    memory_bytes: float | None = None
    memory_kind: str = ""
    last_rank_alone: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Row:
    """One published run. `from_memory`: what was not read in the source (`row`: all of it). `analytical`: a formula's values.
    `regression`: a trainer's own test, timed in modes that no training uses.
    `remarks`: values that could not be read; `unreadable`: why the row as a whole could not."""

    id: str
    file: str
    source: str
    model: StatedModel
    hardware: StatedHardware
    layout: StatedLayout
    figures: ReportedFigures
    num_devices: int | None = None
    sequence_length: int | None = None
    global_sequences: int | None = None
    microbatch_sequences: int | None = None
    accumulation: int | None = None
    framework: str = ""
    recompute: str | None = None
    schedule: str | None = None
    precision: str | None = None
    task: str | None = None
    flops_convention: str = ""
    notes: str = ""
    attention: str | None = None
    from_memory: tuple[str, ...] = ()
    analytical: bool = False
    regression: bool = False
    remarks: tuple[str, ...] = ()
    unreadable: str | None = None


@dataclass(frozen=True)
class Unread:
    """A file without rows, and why."""

    file: str
    reason: str
