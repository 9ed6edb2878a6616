"""What depends on the software that runs a program: what it overlaps, what its host costs, what it holds beside the program."""

from dataclasses import dataclass, replace
from typing import Literal

from fourfold.model.work import PassPart

Dispatcher = Literal["alltoall", "deepep", "hybridep"]


@dataclass(frozen=True)
class Stack:
    """A framework of a year. `fourfold` itself is the default.

    Time. `overlap_inside`: a segment's own collectives run while its kernels do, as the operators are written; else they are
    waited for. `overlap_data`: gathers and reductions of ZeRO and data parallelism run beside computation;
    `overlap_all_reduce`: where they do not, those of whole gradients without a pipeline still do (hooks of torch's DDP).
    `publish_ahead`: what ZeRO-1 and 2 publish travels while the next step's first forward runs, each unit until it is used
    (Megatron's overlap of parameter gathers). `contention`: how much of the time that a collective runs beside a kernel the
    kernel loses. `host_launch_seconds`, `host_collective_seconds`: what the host needs to start a kernel, a collective; a pass
    over a segment takes at least their sum. `host_crowded_seconds`: what a segment's collective adds to that for each rank of
    its group while stages send to one another between nodes. `host_route_seconds`: what a pass over routed experts adds to
    that: the choice of experts, permutations, the wait for how many tokens each has. `step_seconds`: what a step costs beside
    its program. `fused`: how far passes over memory are those of fused kernels (1) rather than one operator after the other
    (0). `expert_launches`: what starting one more expert's product costs beside starting a kernel (0: all are one grouped
    kernel). `gradient_bytes`: of memory traffic, what adding a microbatch's gradient of a parameter to the sum takes where the
    product that makes it does not add it itself. `conversions`: what bringing tokens into a format of fewer bits costs beside
    the device's constant. `product_speed`, `attention_speed`, `link_speed`: its kernels and links beside the constants of
    device and links. `network_hops`: what a hop between nodes costs beside the constant of links. `dispatch_first`: tokens go
    to experts before they are gathered over `etp`, not after. `dispatcher`: what brings tokens to experts and back. `alltoall`:
    one copy for each expert; `deepep`: one to every node and rank that has experts of its, by kernels that read and write the
    tokens where they are (DeepEP, 2025); `hybridep`: so, and sorted by expert on the way (HybridEP, 2026). `fused_experts`: in
    formats with a scale a block, what lies between two products of experts is part of their kernels. `overlap_experts`: in
    schedules that pair a forward with a backward, what goes to experts and back runs beside the other one's computation
    (DualPipe, DeepSeek-AI 2024, section 3.2.1). `merged_experts`: so half of it does in every schedule (Megatron's merged 1F1B,
    2025). `products`: the format of matrix products where it is not the compute format; the head's are in that. `fine_scales`:
    its scales are of blocks, not of tensors. `fused_attention`: flash attention; else the matrix of scores is written,
    `attention_recomputed` again in backward, with `attention_dropout`, in fp32 with `wide_scores` (torch's own).

    Memory. `context_bytes`: what the process holds on the device before anything is allocated. `extra`: what its own tensors
    take beyond the program's, as a share of them; `slack`: what the allocator reserves beyond what is live, as a share.
    `saved_bytes`: what a block keeps for backward beyond the declared, in bytes for each token and element of the hidden state;
    `gathered_bytes`: the same of all tokens where sequence parallelism splits them (inputs of products kept as they were
    gathered); `unit_bytes`: of every parameter of embedding, head and four blocks, what ZeRO-3's runtime keeps of them whole;
    `saved_share`: how much of the declared it keeps, where that is in narrower formats. `moment_bytes`, `master_bytes`: of an
    element of the optimizer's, where it is not in the run's master format (0: no copy beside the parameters). `logits_bytes`:
    what is live of each logit when the loss is made of all tokens at once; 0: the head works chunk by chunk, as it does here,
    in products of few rows.
    """

    name: str = "fourfold"
    overlap_inside: bool = True
    overlap_data: bool = True
    overlap_all_reduce: bool = False
    publish_ahead: bool = False
    contention: float = 0.1
    host_launch_seconds: float = 5e-6
    host_collective_seconds: float = 20e-6
    host_crowded_seconds: float = 0.0
    host_route_seconds: float = 0.0
    step_seconds: float = 0.0
    fused: float = 0.0
    expert_launches: float = 0.0
    gradient_bytes: float = 0.0
    conversions: float = 1.0
    product_speed: float = 1.0
    attention_speed: float = 1.0
    link_speed: float = 1.0
    network_hops: float = 1.0
    dispatch_first: bool = False
    dispatcher: Dispatcher = "alltoall"
    fused_experts: bool = False
    overlap_experts: bool = False
    merged_experts: bool = False
    products: str | None = None
    fine_scales: bool = False
    fused_attention: bool = True
    attention_recomputed: bool = False
    attention_dropout: bool = True
    wide_scores: bool = False
    context_bytes: int = 0
    extra: float = 0.0
    slack: float = 0.0
    saved_bytes: float = 0.0
    gathered_bytes: float = 0.0
    unit_bytes: float = 0.0
    saved_share: float = 1.0
    logits_bytes: float = 0.0
    moment_bytes: float | None = None
    master_bytes: float | None = None

    @property
    def dispatches_once(self) -> bool:
        """A token goes once to every node and rank that has experts of its."""
        return self.dispatcher != "alltoall"

    @property
    def merged_passes(self) -> frozenset[PassPart]:
        """Passes over memory that other kernels do on their way."""
        done: dict[Dispatcher, tuple[PassPart, ...]] = {"deepep": ("sent",), "hybridep": ("sent", "sorted")}
        fused: tuple[PassPart, ...] = ("experts",) if self.fused_experts and self.fine_scales else ()
        return frozenset((*done.get(self.dispatcher, ()), *fused))

    @property
    def without_host(self) -> "Stack":
        """The same with all of a step's kernels started as one graph: the host has nothing to do."""
        return replace(
            self,
            host_launch_seconds=0.0,
            host_collective_seconds=0.0,
            host_crowded_seconds=0.0,
            host_route_seconds=0.0,
        )

    @property
    def whole_head(self) -> bool:
        """Whether the loss is made of all tokens of a microbatch at once."""
        return self.logits_bytes > 0
