"""The run file's schema: every section, every key, its unit, its default and what it may be."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, SerializeAsAny

from fourfold.config.optimizers import AdamWSection, OptimizerSection
from fourfold.config.section import Dtype, Section

Layers = Annotated[int, Field(gt=0, le=100_000)]
"""Bounded, as a list is made of them: no run file exhausts the memory."""


class RopeScaling(Section):
    """Llama 3's stretching of the low rotary frequencies (Llama 3.1 model card, `rope_type = "llama3"`)."""

    factor: Annotated[float, Field(gt=0)]
    low_freq_factor: Annotated[float, Field(gt=0)]
    high_freq_factor: Annotated[float, Field(gt=0)]
    original_max_position: PositiveInt


class YarnScaling(Section):
    """YaRN (Peng et al. 2023). The cosines and sines are multiplied by m(`mscale`) / m(`mscale_all_dim`) where both are stated
    and not 0, else by m(1), with m(x) = 0.1 x ln(factor) + 1; latent attention's scores by m(`mscale_all_dim`) squared where it
    is stated and not 0 (DeepSeek-V2, section 3.1.4)."""

    factor: Annotated[float, Field(ge=1)]
    original_max_position: PositiveInt
    beta_fast: Annotated[float, Field(gt=0)] = 32.0
    beta_slow: Annotated[float, Field(gt=0)] = 1.0
    mscale: Annotated[float, Field(ge=0)] | None = None
    mscale_all_dim: Annotated[float, Field(ge=0)] | None = None


Count = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]


class ModelSection(Section):
    """A decoder: dense or with mixtures of experts, with grouped-query or latent attention. State `preset`, or `hf`, or the
    dimensions; a dimension beside a preset overrides it. `vocab_size` may be left out: the tokenizer's size, padded, is taken.

    0 stands for none: `num_experts` (dense), `key_value_rank` (grouped-query attention), `query_rank`, `capacity_factor`
    (dropless), `sliding_window`. What each key means: `ModelConfig`."""

    preset: str | None = None
    hf: str | None = None
    initial: str | None = None
    family: str | None = None
    num_layers: Layers | None = None
    hidden_size: PositiveInt | None = None
    num_heads: PositiveInt | None = None
    num_kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    ffn_size: PositiveInt | None = None
    vocab_size: PositiveInt | None = None
    vocab_multiple: PositiveInt | None = None
    tie_embeddings: bool | None = None
    rope_theta: Annotated[float, Field(gt=0)] | None = None
    rope_scaling: RopeScaling | None = None
    norm_eps: Annotated[float, Field(gt=0)] | None = None
    qkv_bias: bool | None = None
    qk_norm: bool | None = None
    sliding_window: Count | None = None
    max_position: PositiveInt | None = None
    init_std: Annotated[float, Field(gt=0)] | None = None

    num_experts: Count | None = None
    top_k: Count | None = None
    moe_ffn_size: Count | None = None
    num_shared_experts: Count | None = None
    first_dense_layers: Count | None = None
    moe_period: PositiveInt | None = None
    router: Literal["softmax", "sigmoid"] | None = None
    normalize_top_k: bool | None = None
    routed_scaling: Annotated[float, Field(gt=0)] | None = None
    num_expert_groups: PositiveInt | None = None
    top_groups: PositiveInt | None = None
    balance_loss: Weight | None = None
    z_loss: Weight | None = None
    balance_bias_speed: Weight | None = None
    capacity_factor: Weight | None = None

    query_rank: Count | None = None
    key_value_rank: Count | None = None
    rope_head_dim: Count | None = None
    nope_head_dim: Count | None = None
    value_head_dim: Count | None = None
    rope_interleave: bool | None = None
    yarn_scaling: YarnScaling | None = None

    mtp_layers: Annotated[int, Field(ge=0, le=100)] | None = None
    mtp_loss: Weight | None = None

    norm: Literal["rms", "layer"] | None = None
    activation: Literal["silu", "gelu"] | None = None
    gated: bool | None = None
    linear_bias: bool | None = None
    positions: Literal["rope", "learned"] | None = None


class CorpusPart(Section):
    """One corpus of a blend; weights are relative shares of the sequences."""

    path: str
    weight: Annotated[float, Field(gt=0)] = 1.0


class DataSection(Section):
    """What is read: `"stdlib"`, a folder, a file, a glob, a Megatron `.bin`/`.idx` pair, or a weighted blend.

    `document_tokens`: a document's mean length, for predictions alone: how much attention `document_mask` saves."""

    corpus: str | list[CorpusPart] = "stdlib"
    tokenizer: str = "bpe:4096"
    text_key: str = "text"
    document_mask: bool = False
    document_tokens: PositiveInt | None = None
    held_out_every: Annotated[int, Field(ge=2)] = 20
    directory: str = "fourfold-data"


class BatchSection(Section):
    """One step's global batch, in sequences; the length of the run in steps or in tokens."""

    global_sequences: PositiveInt
    sequence_length: PositiveInt
    steps: PositiveInt | None = None
    tokens: PositiveInt | None = None


class LayoutSection(Section):
    """Degrees of the mesh's axes and how each rank's step is arranged. `dp_shard` left out: all remaining ranks.

    `schedule`: a name, `file:PATH` of a compute order in text form, or `python:MODULE:FUNCTION` that yields one.
    `segments_per_stage`: how many segments (embedding, blocks, head) each pipeline stage has, in forward order; left out:
    divided evenly by cost. `cp_method`: `ring`, `all_gather`, `ulysses`, or `ring+ulysses:U`, with ulysses of degree U inside a
    ring of degree cp / U. `outermost`: which ranks lie farthest apart on the devices: the stages of a pipeline (`pp`), HSDP's
    replicas, each with a whole pipeline (`dp_replicate`), or all ranks that read different data (`dp`).

    `layout = "auto"`, or `auto = true` beside keys that are to be kept: the planner's best for the cluster."""

    auto: bool = False
    pp: PositiveInt = 1
    schedule: str = "1f1b"
    virtual_stages: PositiveInt = 1
    segments_per_stage: list[PositiveInt] | None = None
    dp_replicate: PositiveInt = 1
    dp_shard: PositiveInt | None = None
    outermost: Literal["pp", "dp_replicate", "dp"] = "pp"
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    cp: PositiveInt = 1
    cp_method: str = "ring"
    tp: PositiveInt = 1
    sequence_parallel: bool = False
    ep: PositiveInt = 1
    etp: PositiveInt = 1
    microbatch_sequences: PositiveInt = 1
    recompute: str | list[str] = "none"
    prefetch: Annotated[int, Field(ge=0)] = 1


class PrecisionSection(Section):
    """Number formats. `master` holds the weights that the optimizer updates, and its state; `gradients` is the format in
    which gradients are accumulated and reduced. Left out: fp32 (fp64 when `compute` is fp64)."""

    compute: Dtype = "fp32"
    master: Literal["fp64", "fp32"] | None = None
    gradients: Dtype | None = None

    @property
    def master_format(self) -> str:
        """As stated, or what it is where it is left out."""
        return self.master or self._wide

    @property
    def gradients_format(self) -> str:
        """As stated, or what it is where it is left out."""
        return self.gradients or self._wide

    @property
    def _wide(self) -> str:
        return "fp64" if self.compute == "fp64" else "fp32"


class CheckpointSection(Section):
    """When the state is saved, how many saves are kept, and where (default: the run's folder)."""

    every_steps: PositiveInt | None = None
    keep: PositiveInt = 2
    directory: str | None = None


class ClusterSection(Section):
    """The machine. `"this"` measures the peak of this machine's matrix products when the run starts."""

    preset: str = "this"


class RunSection(Section):
    """Seed, evaluation, logging, devices and time-outs."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    evaluate_every: PositiveInt | None = None
    evaluate_sequences: PositiveInt = 32
    log: list[Literal["tensorboard", "wandb", "mlflow"]] = []  # noqa: RUF012 (pydantic copies it)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads_per_rank: PositiveInt | None = None
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    sample_tokens: Annotated[int, Field(ge=0)] = 200


class RunConfig(Section):
    """A whole run file."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    batch: BatchSection
    layout: LayoutSection = LayoutSection()
    precision: PrecisionSection = PrecisionSection()
    optimizer: SerializeAsAny[OptimizerSection] = AdamWSection()
    checkpoint: CheckpointSection = CheckpointSection()
    cluster: ClusterSection = ClusterSection()
    run: RunSection = RunSection()

    def on_cluster(self, name: str) -> "RunConfig":
        """The same run on the cluster of that name."""
        return self.model_copy(update={"cluster": self.cluster.model_copy(update={"preset": name})})
