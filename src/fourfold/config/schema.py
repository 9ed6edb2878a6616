"""The run file's schema: every section but `[model]`, every key, its unit and default; the reference page prints this text."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, SerializeAsAny, model_validator
from pydantic_core import PydanticCustomError

from fourfold.config.kernel_choice import KernelChoice
from fourfold.config.layout_section import LayoutSection
from fourfold.config.model_section import ModelSection
from fourfold.config.optimizers import AdamWSection, OptimizerSection
from fourfold.config.section import Dtype, Section

GemmRecipeName = Literal["fp8", "fp8-block", "mxfp8"]
"""Recipes of low-precision GEMMs that fourfold executes."""
Element = Literal["e4m3", "e5m2"]
"""Formats of 8 bits: sign, exponent of 4 or 5, mantissa of 3 or 2."""
GemmDtype = Literal["fp8", "fp8-block", "mxfp8", "nvfp4"]
"""Formats of low-precision GEMMs; all but the first have a scale for every block of numbers."""
FlopsConvention = Literal["causal", "full", "hardware", "6nd"]
"""How model FLOPs are counted (`model.counts.step_flops_per_token`)."""


AttentionBackendName = Literal[
    "auto", "flash", "flash-3", "flash-4", "cudnn", "efficient", "flash-attn", "triton", "tiled"
]


NormBackendName = Literal["auto", "formula", "torch", "triton"]
LossBackendName = Literal["auto", "formula", "triton"]
PointwiseBackendName = Literal["auto", "formula", "triton"]
RecurrenceBackendName = Literal["auto", "formula", "fla"]
MatmulBackendName = Literal["auto", "torch", "onednn"]
TokenDtype = Literal["uint16", "uint32", "int32", "int64", "uint8", "int16", "uint64"]


def _no_number(value: object) -> object:
    """1 equals true in Python, and may be meant as an id."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise PydanticCustomError("literal_error", "Input should be 'auto', True or False")
    return value


class WeightChange(Section):
    """A later weight of a source."""

    step: PositiveInt | None = None
    """The step (the first is 0) from which on the weight holds. State it or `tokens`, the same one in all changes of a source."""
    tokens: PositiveInt | None = None
    """Tokens of the run after which the weight holds, from the next step on."""
    weight: Annotated[float, Field(ge=0)]
    """Relative share of the sequences; 0: none."""
    linear: bool = False
    """Whether the weight goes to this value in a line from where it was stated last, in at most 256 steps of equal length. Left
    out, it changes at once."""


class CorpusPart(Section):
    """One source of a blend."""

    path: str
    """A folder, a file, a glob, or a Megatron `.bin`/`.idx` pair; of text, or of token ids (`.npy`, `.bin`)."""
    token_dtype: TokenDtype | None = None
    """`data.token_dtype` for this source. Left out: that one."""
    weight: Annotated[float, Field(ge=0)] = 1.0
    """Relative share of the sequences. 0, where a later weight is stated: it begins then."""
    later: list[WeightChange] = Field(default_factory=list)
    """Weights that the source has later in the run, in order. Before a change nothing depends on it; after it the source is read on
    from where it was."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if not any((self.weight, *(change.weight for change in self.later))):
            raise PydanticCustomError("weight", "a source has a weight greater than 0 at some time: weight = 1.0")
        kinds = {(change.step is None, change.tokens is None) for change in self.later}
        if kinds - {(False, True)} and kinds - {(True, False)}:
            raise PydanticCustomError(
                "later",
                "each change of a source states step, or each states tokens: later = [{step = 1000, weight = 0.5}]",
            )
        places = [change.step or change.tokens or 0 for change in self.later]
        if places != sorted(set(places)):
            raise PydanticCustomError("later", "changes of a weight rise in their step or tokens")
        return self


class SkippedData(Section):
    """Sequences that nobody trains on."""

    step: Annotated[int, Field(ge=0)]
    """The step before whose batch they are left out."""
    sequences: PositiveInt
    """How many, in the order in which the run would have read them."""


class DataSection(Section):
    """The training text and how it becomes tokens."""

    corpus: str | list[CorpusPart] = "stdlib"
    """`"stdlib"` (the Python standard library), a folder, a file, a glob, a Megatron `.bin`/`.idx` pair, or a weighted blend; of
    text, or of token ids (`.npy`, `.bin`)."""
    tokenizer: str = "bpe:4096"
    """`"bytes"`, `"bpe:N"` (trained on the corpus, N entries), or the path of a `tokenizer.json`."""
    eos: Annotated[int, Field(ge=0)] | None = None
    """Id of the end-of-text token in a `tokenizer.json`. Left out: what the files of its folder state; where these leave
    two candidates, the run asks for this key."""
    bos: Annotated[Literal["auto", True, False], BeforeValidator(_no_number)] = "auto"
    """Whether the tokenizer's begin-of-text token stands before every document. `"auto"`: as its post-processor does."""
    text_key: str = "text"
    """Field of a JSON line, or column of a parquet file, that holds a document's text."""
    bad_records: Literal["error", "skip"] = "error"
    """A record that holds no document (broken JSON, zero bytes, no text under `text_key`): refused, or left out and counted."""
    skip: bool = False
    """Whether to train without files that cannot be read (binary, damaged, of an unknown encoding or compression). Left out, a run
    refuses damaged ones, and others where they hold more than 1 % of the corpus's bytes."""
    document_mask: bool = False
    """Whether attention and positions stay inside a document."""
    document_tokens: PositiveInt | None = None
    """Mean length of a document [tokens]. Predictions alone use it: how much attention `document_mask` saves."""
    token_dtype: TokenDtype | None = None
    """Number format of the ids in `.bin` files without a header (little-endian). Files with a header, and pairs, state theirs."""
    validation_every: Annotated[int, Field(ge=2)] = 20
    """One document in this many belongs to the validation set, chosen by a hash of its text."""
    skip_sequences: list[SkippedData] = Field(default_factory=list)
    """Data to leave out: tables with `step` and `sequences`, as a run that rolled back did (`spikes.policy`)."""
    """One document in this many belongs to the validation set, chosen by a hash of its text, or of its ids."""
    validation_key: str = ""
    """A key of this hash: another one chooses other documents."""
    directory: str = "fourfold-data"
    """Folder that holds the tokens that were prepared."""


class RampPoint(Section):
    """A size of the global batch on its way up, and where it ends: state one of `until_steps`, `until_tokens`,
    `until_sequences`."""

    global_sequences: PositiveInt
    """Sequences of one step."""
    by: PositiveInt | None = None
    """Sequences by which the batch grows at equal distances until the end of this point, when it has the next size. Left out: it
    stays as it is until there."""
    until_steps: PositiveInt | None = None
    """Steps of the run behind which the next size begins."""
    until_tokens: PositiveInt | None = None
    """Tokens of the run behind which the next size begins."""
    until_sequences: PositiveInt | None = None
    """Sequences of the run behind which the next size begins."""


class BatchSection(Section):
    """The global batch of one step, and the length of the run: state `steps` or `tokens`."""

    global_sequences: PositiveInt
    """Sequences of one step over all ranks; a multiple of `dp_replicate` x `dp_shard` x `microbatch_sequences`."""
    sequence_length: PositiveInt
    """Tokens of one sequence."""
    steps: PositiveInt | None = None
    """Optimizer steps of the run."""
    tokens: PositiveInt | None = None
    """Tokens of the run, instead of `steps`; rounded up to whole steps."""
    ramp: list[RampPoint] = Field(default_factory=list)
    """Smaller batches at first, in order: tables with `global_sequences`, an end (`until_steps`, `until_tokens` or
    `until_sequences`, counted from the run's start), and `by` where the batch grows on the way. Behind the last one it is
    `global_sequences`."""


class PrecisionSection(Section):
    """Number formats."""

    compute: Dtype = "fp32"
    """Format of activations and of the parameters that compute uses."""
    master: Literal["fp64", "fp32", "split"] | None = None
    """Format of the weights that the optimizer updates, and of its states (but `optimizer.state_dtype`). `split`, with `compute` in
    bf16: fp32 weights as those of bf16 and 16 bits that they lack, 4 bytes a parameter in place of 6. Left out: fp32, or fp64 where
    `compute` is fp64."""
    gemm_dtype: GemmRecipeName | None = None
    """Recipe by which the operands of blocks' linear layers are quantized to 8 bits before they are multiplied: `fp8` has one scale
    for a tensor, `fp8-block` one for 128 numbers (128 x 128 of a weight), `mxfp8` one for 32. Left out: they stay in `compute`."""
    gemm_gradients: Element | None = None
    """Format of the gradients among these operands; weights and activations are E4M3. Left out: `e5m2` with `fp8`, else `e4m3`."""
    gradients: Dtype | None = None
    """Format in which gradients are accumulated and reduced. Left out: fp32, or fp64 where `compute` is fp64."""
    gradient_communication: Literal["bf16"] | None = None
    """Format in which ranks send each other gradients: each rounds what it sends once, and sums in fp32 what it receives. Needs
    `layout.zero` 1, 2 or 3. Left out: gradients travel in the format `gradients`."""

    @property
    def master_format(self) -> str:
        """The format in which the optimizer computes: `master`, or its default."""
        return "fp32" if self.splits_master else self.master or self._accumulation_dtype

    @property
    def splits_master(self) -> bool:
        """Whether master weights lie in halves, one of them the weights of `compute`."""
        return self.master == "split"

    @property
    def gradients_format(self) -> str:
        """`gradients`, or its default."""
        return self.gradients or self._accumulation_dtype

    @property
    def _accumulation_dtype(self) -> str:
        return "fp64" if self.compute == "fp64" else "fp32"


class CheckpointSection(Section):
    """Saves of the training state."""

    every_steps: PositiveInt | None = None
    """Steps between two checkpoints. Left out: one at the end."""
    keep: PositiveInt = 2
    """How many of the latest checkpoints are kept."""
    keep_every_steps: PositiveInt | None = None
    """Checkpoints of steps that are multiples of this are kept for good."""
    keep_stage_ends: bool = True
    """Whether the checkpoint at the end of every stage but the last is kept for good."""
    keep_best: bool = False
    """Whether the checkpoint with the best validation loss is kept. Evaluate as often as you save (`run.evaluate_every`)."""
    max_bytes: PositiveInt | None = None
    """Bytes of all checkpoints of the run on its disk. Beyond them one that waits for its copy or export goes, then the oldest that
    is kept for good, but never one of the latest `keep`, or the best: it has room for these."""
    copy_to: str | None = None
    """A folder or an fsspec URL (`s3://bucket/run`) to which every checkpoint that stays is copied beside training, with the files
    of the run's folder that a start elsewhere needs. It belongs to one run. Left out: none."""
    copy_all: bool = False
    """Whether `copy_to` gets every checkpoint and keeps all. Left out, it keeps the latest `keep`, and those that are kept for
    good."""
    export_every_steps: PositiveInt | None = None
    """Steps between two Hugging Face folders that are written of checkpoints, to `exports` in the run's folder; a multiple of
    `every_steps`. Left out: none."""
    export_stage_ends: bool = False
    """Whether the end of every stage, and of the run, is exported too."""
    export_dtype: Dtype = "fp32"
    """Number format of these exports."""
    export_keep: PositiveInt = 2
    """How many of the latest exports are kept; those of stage ends are kept for good where `export_stage_ends` is true."""
    asynchronous: bool = True
    """Whether training goes on while a checkpoint is written. A step is held up for a copy to host memory, which stays
    allocated."""
    memory_every_steps: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """Steps between two copies of the state to memory, from which ranks that are started again go on. Each machine keeps two copies
    of its ranks' state in /dev/shm, and two of another machine's. 0: none."""
    directory: str | None = None
    """Folder of the checkpoints, or an fsspec URL (`s3://bucket/folder`) whose package is installed. It belongs to one run. Left
    out: `checkpoints` in the run's folder."""
    start_from: str | None = None
    """Another run's folder, a folder of checkpoints, or one checkpoint: a new run begins with the weights, optimizer states and
    counters of the newest there that can be read, at its step. Left out: a run begins at step 0."""


class ClusterSection(KernelChoice):
    """The machine that the run is for."""

    preset: str = "this"
    """A cluster's name, `NAME:DEVICES`, or a cluster file. `"this"` is the machine of the run, whose peak is measured when it
    starts."""
    software: str | None = None
    """The software profile that predictions take: `fourfold`, or the name of another profile (`megatron`). Left out: fourfold."""
    gemm_dtype: GemmDtype | None = None
    """The format that predictions take for matmuls but the head's. Left out: `precision.compute`."""


class PublishedSection(Section):
    """One figure that the literature states for this run. `fourfold simulate` prints its prediction beside it."""

    source: str = ""
    """Authors, year, title and table."""
    tflops_per_device: PositiveFloat | None = None
    """Model TFLOP/s of a device, counted by `flops`."""
    flops: FlopsConvention = "causal"
    """FLOPs of `tflops_per_device` and `mfu`: `causal` counts half of the attention matrix, `full` all of it, `hardware` also what
    recomputation repeats, `6nd` six for every parameter."""
    mfu: PositiveFloat | None = None
    """Model FLOPs, counted by `flops`, over the device's dense bf16 peak."""
    tokens_per_second_per_device: PositiveFloat | None = None
    """Tokens a second of one device."""
    step_seconds: PositiveFloat | None = None
    """Seconds of a step."""


class ValidationCorpus(Section):
    """A validation set of its own."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$")]
    """Name of its loss in metrics: letters, digits, `_`, `.` and `-`."""
    corpus: str
    """Documents, as `data.corpus` names one: all of them are for validation. `data` says how text is read, and the run's
    tokenizer encodes it."""
    token_dtype: TokenDtype | None = None
    """`data.token_dtype` for this set. Left out: that one."""
    sequences: PositiveInt | None = None
    """Sequences of one evaluation. Left out: `run.evaluate_sequences`."""


class RunSection(Section):
    """Seed, evaluation, logging, devices and time-outs."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the initial weights and of the data's order."""
    evaluate_every: PositiveInt | None = None
    """Steps between two evaluations of the validation loss. Left out: one, at the end."""
    evaluate_sequences: PositiveInt = 32
    """Sequences of one evaluation. Rows that fill the last microbatches are ignored: the loss is the same under every layout."""
    evaluate_sources: bool = False
    """Whether each evaluation tells the loss of every source of `data.corpus` too, over `evaluate_sequences` of its own
    documents for validation. It takes as long again for each."""
    validation: list[ValidationCorpus] = Field(default_factory=list)
    """Validation sets by name, `[[run.validation]]`, whose losses stand beside the validation loss."""
    log: list[Literal["tensorboard", "wandb", "mlflow"]] = Field(default_factory=list)
    """Loggers beside `metrics.jsonl`; each needs the extra of its name."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks compute. `auto`: CUDA where there is a device."""
    attention_backend: AttentionBackendName = "auto"
    """Kernels of attention. `auto`: on CUDA the fastest that computes this run's attention right, measured once for a device and
    its shapes; on a processor, and by name, `flash` is PyTorch's FlashAttention. See docs/flash-attention.md."""
    norm_backend: NormBackendName = "auto"
    """Kernels of RMSNorm. `formula`: operator by operator; `torch`: PyTorch's fused operator; `triton`: fourfold's two kernels, the
    last two on CUDA. `auto`: on CUDA the fastest that computes them right, measured once for a device and its shapes; else
    `formula`."""
    loss_backend: LossBackendName = "auto"
    """Kernels of cross-entropy and of its gradient. `formula`: operator by operator; `triton`: fourfold's two kernels, on CUDA.
    `auto`: as for `norm_backend`."""
    pointwise_backend: PointwiseBackendName = "auto"
    """Kernels of SwiGLU and rotary position embedding. `formula`: operator by operator; `triton`: fourfold's kernels, on CUDA.
    `auto`: as for `norm_backend`."""
    recurrence_backend: RecurrenceBackendName = "auto"
    """Kernels of the gated delta rule (`model.mixer`). `formula`: matmuls of chunks; `fla`: those of flash-linear-attention, on
    CUDA, where that package is installed. `auto`: as for `norm_backend`."""
    cuda_graphs: bool = False
    """Whether a step is captured as a CUDA graph and replayed, so that the host starts no kernels one by one. For models without
    experts and without `data.document_mask`, with AdamW or SGD. No instruction of a step can then be watched or timed by itself."""
    matmul_backend: MatmulBackendName = "auto"
    """Library of fp32 matmuls on a processor. `torch`: that of PyTorch's own products, which is MKL on x86; `onednn`: oneDNN, which
    PyTorch brings beside it. `auto`: for forward, input gradients and weight gradients apart, `onednn` where it is faster by a
    measurement at the start, which a run makes that is long enough to gain by it."""
    track_memory: bool = False
    """Whether, on a processor, the first step of a launch follows every tensor to measure the peak memory; it is slower for that.
    On CUDA the allocator tells the peak of every step."""
    threads_per_rank: PositiveInt | None = None
    """CPU threads of one rank. Left out: an equal share of the cores."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """Seconds after which a collective that nobody joins ends the run."""
    preflight: bool | None = None
    """Whether the start measures what each rank sends to the next of every group, prints it beside the figures of `cluster.preset`,
    and names slow links; it takes a few seconds. Left out: on CUDA with up to 1,024 ranks."""
    max_skipped_steps: PositiveInt = 20
    """Steps in a row that are skipped, because their gradients are not finite, before the run ends. None of them is saved."""
    sample_tokens: Annotated[int, Field(ge=0)] | None = None
    """Tokens that the model writes on the first rank's device when training has finished. 0: none. Left out: 200, or none where the
    model has more than 1 B parameters, which `fourfold sample` reads instead."""
    deterministic: bool = False
    """Whether only kernels are taken that repeat their bits: PyTorch refuses others by name, back ends have to show it on the run's
    shapes, and NCCL sums in rings. It is slower. See docs/checkpoints.md."""
    gc_every_steps: Annotated[int, Field(ge=0, lt=2**53)] = 50
    """Steps between two collections of Python's cyclic garbage, which all ranks make before the same step, so that none keeps the
    others waiting in between. 0: each rank when Python likes."""


class FaultsSection(Section):
    """Recovery: when a rank fails, all ranks are started again from the newest checkpoint."""

    attempts: PositiveInt = 3
    """Failures in a row at one step after which the run stops with the first cause. 1: it is never started again."""
    restarts: Annotated[int, Field(ge=0)] = 10
    """Restarts in a row without a newer checkpoint after which the run stops. 0: it is never started again."""
    stall_seconds: Annotated[float, Field(ge=0)] | None = None
    """Seconds within which a rank that does not get on is named and the ranks are started again; at least three times its
    longest instruction so far, and on CUDA twice its longest step. Left out: 5 on processors; 90 on CUDA, where NCCL gets over a
    link that is away for tens of seconds. 0: nobody watches, and `run.timeout_seconds` alone ends a hang."""
    elastic: bool = False
    """Whether the run goes on with fewer ranks, under another layout, where it has lost a device or a machine and has no spare. It
    takes all ranks again at the first checkpoint after they are back."""
    min_ranks: PositiveInt = 1
    """The fewest ranks with which an elastic run goes on."""
    device_failures: PositiveInt = 2
    """Failures in a row of the rank on one device while it starts, after which the device is lost, where another can take its place
    or the run may shrink."""
    probe_seconds: PositiveFloat = 30.0
    """Seconds between two trials whether a lost device works again."""
    straggler_ratio: Annotated[float, Field(gt=1)] = 1.5
    """A rank is flagged whose own work takes this many times its peers', each for what it has to compute; it goes on."""
    checksum_every_steps: Annotated[int, Field(ge=0, lt=2**53)] = 100
    """Steps between two comparisons of the values that several ranks hold alike, by checksums of their bits, and of those that one
    rank alone holds with what its last update left. Before a save they are always compared, and the bytes of a save with the state.
    0: never."""
    locate_nan: bool = True
    """Whether each rank takes the norms of its own gradients, so that a step with a NaN tells whose it was."""
    replay_every_steps: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """Steps between two in which every segment computes one microbatch twice and compares the bits before the update. Needs kernels
    that repeat their bits. 0: never."""

    def stall_limit(self, on_device: bool) -> float:
        """`stall_seconds`, or its default for ranks on CUDA devices or on processors."""
        return self.stall_seconds if self.stall_seconds is not None else (90.0 if on_device else 5.0)


class SpikesSection(Section):
    """Steps whose loss or gradient norm is far above those before: robust z-scores, (value - median) / (1.4826 x median absolute
    deviation) over the latest steps."""

    policy: Literal["off", "log", "skip", "rollback"] = "log"
    """`log`: an event. `skip`: a step whose gradient norm is beyond the threshold changes nothing. `rollback`: the run goes back to
    a checkpoint, and leaves out the data of the steps since then."""
    window: Annotated[int, Field(ge=4)] = 128
    """Steps over which median and deviation are taken. Nothing is a spike before there are as many."""
    threshold: PositiveFloat = 8.0
    """The z-score above which a value is a spike."""
    rollback_steps: PositiveInt = 10
    """`rollback`: steps between the checkpoint to go back to and the spike, at least."""
    max_rollbacks: PositiveInt = 3
    """`rollback`: how often. Behind the last, spikes are events."""
    max_skips: PositiveInt = 5
    """`skip`: steps in a row that change nothing. The next one is made whatever its norm is."""


Quantity = Literal["gradients", "weights", "activations", "attention", "experts"]
"""Something that a sampled step measures of every layer."""


class MetricsSection(Section):
    """Numbers of every layer, measured in some steps (`layers.jsonl`). Other steps are as they are without it."""

    every_steps: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """Steps between two that are sampled. 0: none."""
    of: list[Quantity] = Field(default=["gradients", "weights", "activations", "attention", "experts"])
    """`gradients`: norm before clipping. `weights`: norm, and that of the update divided by it. `activations`: root mean square of
    the residual stream behind the layer. `attention`: the largest score of a query and a key that it sees. `experts`: largest and
    least load over the mean, and the loads' entropy."""


class StageSection(Section):
    """Steps of the run that are made otherwise than those before: the keys that a stage states hold until a later one states them
    again. Weights, optimizer states, the place in the data and the counters go through."""

    name: str = ""
    """A name for people."""
    until_steps: PositiveInt | None = None
    """Step at which the stage ends, counted from the run's start. The last stage ends with the run."""
    until_tokens: PositiveInt | None = None
    """Tokens of the run behind which the stage ends, instead of `until_steps`; rounded up to a whole step."""
    batch: dict[str, Any] = Field(default_factory=dict)
    """`global_sequences`, `sequence_length`, `ramp`. One that states `global_sequences` ends a ramp."""
    data: dict[str, Any] = Field(default_factory=dict)
    """`corpus` (another blend), `document_mask`."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Rotary keys (`rope_theta`, `yarn_scaling`, ...), `max_position`, `sliding_window`, weights of auxiliary losses."""
    layout: dict[str, Any] = Field(default_factory=dict)
    """Any key of the layout, for the same number of ranks; `dp_shard` is what they leave, unless it is stated."""
    spikes: dict[str, Any] = Field(default_factory=dict)
    """Any key: what is done with a spike."""
    optimizer: dict[str, Any] = Field(default_factory=dict)
    """Any key but `name`. A schedule that a stage states begins at the stage, and lasts until a stage states another."""


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
    faults: FaultsSection = FaultsSection()
    spikes: SpikesSection = SpikesSection()
    metrics: MetricsSection = MetricsSection()
    published: PublishedSection = PublishedSection()
    stage: list[StageSection] = Field(default_factory=list)

    def on_cluster(self, name: str) -> "RunConfig":
        """A copy of the run on the cluster of that name."""
        return self.model_copy(update={"cluster": self.cluster.model_copy(update={"preset": name})})
