"""Software profiles: what the software that runs a program overlaps, what its host costs, its memory beside the program."""

from dataclasses import dataclass, replace

from fourfold.config.kernel_choice import Dispatcher, KernelChoice
from fourfold.model.work import ElementwisePart

OWN_SOFTWARE = "fourfold"


@dataclass(frozen=True)
class SoftwareProfile:
    """A framework of a year, on a platform. `fourfold` itself is the default. A constant "beside" another one is a factor of a
    device's or a link's constant."""

    name: str = OWN_SOFTWARE
    base: str = ""
    """The profile that a file's constants depart from; empty: it is no file's."""
    kernels: tuple[tuple[str, str], ...] = ()
    """The kernels that it runs, a word for each key, where they were looked up (`kernel_choice.running`)."""

    # Overlap

    overlap_inside: bool = True
    """A segment's own collectives run while its kernels do, as the operators are written; else they are waited for."""
    overlap_tensor: bool = False
    """Collectives of tensor parallelism run part by part beside the matmul that waits for them, or that they wait for."""
    overlap_data: bool = True
    """Gathers and reductions of ZeRO and data parallelism run beside computation."""
    overlap_all_reduce: bool = False
    """Where they do not, those of unsharded gradients without a pipeline still do (hooks of torch's DDP)."""
    overlap_param_gather: bool = False
    """The parameter all-gather of ZeRO-1 and 2 runs beside the next step's first forward, each unit until it is used (Megatron's
    overlap_param_gather)."""
    contention: float = 0.1
    """Contention factor: the share of the time beside a collective that a kernel loses."""

    # The host

    host_instruction_seconds: float = 0.0
    """Seconds of the host for an instruction of a program, beside its launches. Where it is known, its instructions follow each
    other ahead of the device (`simulate.host`); 0: not known, and the host is looked at pass by pass."""
    host_launch_seconds: float = 5e-6
    """Seconds to start a kernel. A pass over a segment takes at least the sum of what the host needs for it."""
    host_collective_seconds: float = 20e-6
    """Seconds to start a collective."""
    host_crowded_seconds: float = 0.0
    """Seconds that a segment's collective adds for each rank of its group while stages send to one another between nodes."""
    host_route_seconds: float = 0.0
    """Seconds that a pass over routed experts adds: the choice of experts, permutations, the wait for how many tokens each has."""
    host_gather_seconds: float = 0.0
    """Seconds that a module adds whose weights ZeRO-3 gathers and frees by hooks of its own (DeepSpeed), in each pass over it."""
    step_seconds: float = 0.0
    """Host and data time of a step, in seconds."""

    # Kernels and links

    fused: float = 0.0
    """How far memory-bound kernels are fused (1) rather than one operator after the other (0)."""
    fused_parts: tuple[tuple[ElementwisePart, bool], ...] = ()
    """Memory-bound kernels that are fused, or not at all, whatever `fused` says of the others."""
    expert_launches: float = 0.0
    """Cost of starting one more expert's GEMM beside starting a kernel (0: all are one grouped GEMM)."""
    gradient_bytes: float = 0.0
    """Memory traffic of adding a microbatch's gradient of a parameter to the sum, where the GEMM that makes it does not add it
    itself."""
    conversions: float = 1.0
    """Bytes moved to bring tokens into a low-precision format, beside the device's."""
    gemm_speed: float = 1.0
    attention_speed: float = 1.0
    link_speed: float = 1.0
    """Speed of its GEMMs, attention and links, beside the device's and the links'."""
    low_speed: float = 1.0
    """Speed of its low-precision GEMMs, beside its others."""
    expert_speed: float = 1.0
    """Speed of its experts: of their grouped GEMMs, and of the kernels that sort tokens by expert and bring them back."""
    network_hops: float = 1.0
    """Cost of a hop between nodes, beside the links'."""
    gemm_dtype: str | None = None
    """The format of matmuls where it is not the compute format; the head's are in that."""
    fine_scales: bool = False
    """The scales of `gemm_dtype` are of blocks, not of tensors."""
    fused_attention: bool = True
    """Flash attention; else the matrix of scores is written."""
    attention_recomputed: bool = False
    """A matrix of scores that is written is made again in backward."""
    attention_dropout: bool = True
    """Dropout is applied to a matrix of scores that is written."""
    fp32_scores: bool = False
    """Scores that are written are in fp32 (torch's own operators)."""
    written_passes: tuple[float, float] = (4.0, 7.0)
    """How often such scores are read or written, forward and backward: product, softmax, product, each one kernel."""
    update_passes: float = 1.0
    """Memory traffic of the optimizer's update beside one kernel's."""
    update_launches: int = 1
    """Kernels that update a unit's parameters."""

    # Experts

    dispatch_first: bool = False
    """Tokens go to experts before they are gathered over `etp`, not after."""
    dispatcher: Dispatcher = "alltoall"
    fused_experts: bool = False
    """In formats with a scale a block, the kernels between two grouped GEMMs of experts are part of them."""
    overlap_experts: bool = False
    """In schedules that pair a forward with a backward, dispatch to experts and back runs beside the other one's computation
    (DualPipe, DeepSeek-AI 2024, section 3.2.1)."""
    merged_experts: bool = False
    """Half of the dispatch does so in every schedule (Megatron's merged 1F1B, 2025)."""

    # Memory

    context_bytes: int = 0
    """Bytes that the process takes on the device before it allocates anything."""
    communicator_bytes: int = 0
    """Bytes that each communicator of NCCL takes beside them; 0 where `context_bytes` has them all."""
    extra: float = 0.0
    """Memory of its own tensors beyond the program's, as a share of them."""
    fragmentation: float = 0.0
    """Memory that the allocator reserves beyond the allocated tensors, as a share of them."""
    saved_bytes: float = 0.0
    """Activations of a block beyond the declared, in bytes for each token and element of the hidden state."""
    gathered_bytes: float = 0.0
    """`saved_bytes` of all tokens where sequence parallelism splits them (inputs of GEMMs kept as they were gathered)."""
    unit_bytes: float = 0.0
    """Bytes of every parameter of embedding, head and four blocks that ZeRO-3's runtime keeps unsharded."""
    saved_share: float = 1.0
    """Share of the declared activations that a block keeps, where they are in narrower formats."""
    narrow_operands: bool = False
    """Activations that a low-precision GEMM reads are saved in its format (Transformer Engine)."""
    logits_bytes: float = 0.0
    """Live bytes of each logit when the loss is made of all tokens at once; 0: the head works chunk by chunk, as it does here, in
    GEMMs of few rows."""
    optimizer_bytes: float | None = None
    """Bytes of an element of the optimizer states, where that is not in the master format."""
    master_bytes: float | None = None
    """Bytes of an element of the optimizer's copy of the parameters (0: there is none)."""

    @property
    def is_own(self) -> bool:
        """Whether it is fourfold itself, as it ships or with constants fitted to a machine: the program then says what runs."""
        return (self.base or self.name) == OWN_SOFTWARE

    @property
    def words(self) -> KernelChoice:
        """Words for its own switches; the kernels that it usually runs stand in a table (`kernel_choice.toml`)."""
        return KernelChoice(
            tp_collectives="overlapped" if self.overlap_tensor else "exposed",
            dispatcher=self.dispatcher,
            ep_collectives="overlapped" if self.merged_experts or self.overlap_experts else "exposed",
            experts="fused" if self.fused_experts else "unfused",
            launches="single",
        )

    @property
    def dispatches_once(self) -> bool:
        """A token goes once to every node and rank that has experts of its."""
        return self.dispatcher != "alltoall"

    @property
    def merged_passes(self) -> frozenset[ElementwisePart]:
        """Memory-bound kernels that other kernels do on their way."""
        done: dict[Dispatcher, tuple[ElementwisePart, ...]] = {"deepep": ("sent",), "hybridep": ("sent", "sorted")}
        fused: tuple[ElementwisePart, ...] = ("experts",) if self.fused_experts and self.fine_scales else ()
        return frozenset((*done.get(self.dispatcher, ()), *fused))

    @property
    def without_host(self) -> "SoftwareProfile":
        """A profile with all of a step's kernels started as one graph: the host has nothing to do."""
        return replace(
            self,
            host_instruction_seconds=0.0,
            host_launch_seconds=0.0,
            host_collective_seconds=0.0,
            host_crowded_seconds=0.0,
            host_route_seconds=0.0,
            host_gather_seconds=0.0,
        )

    @property
    def unchunked_head(self) -> bool:
        """Whether the loss is made of all tokens of a microbatch at once."""
        return self.logits_bytes > 0
