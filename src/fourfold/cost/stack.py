"""What depends on the software that runs a program: what it overlaps, what its host costs, what it holds beside the program."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stack:
    """A framework of a year. `fourfold` itself is the default.

    Time. `overlap_inside`: a segment's own collectives run while its kernels do, as the operators are written; else they are waited
    for. `overlap_data`: gathers and reductions of ZeRO and data parallelism run beside computation. `contention`: how much of the
    time that a collective runs beside a kernel the kernel loses. `host_launch_seconds`, `host_collective_seconds`: what the host
    needs to start a kernel, a collective; a pass over a segment takes at least their sum. `step_seconds`: what a step costs beside
    its program. `fused`: how far passes over memory are those of fused kernels (1) rather than one operator after the other (0).
    `product_speed`, `attention_speed`, `link_speed`: its kernels beside the device's constants. `fused_attention`: flash attention;
    else the matrix of scores is written, `attention_recomputed` again in backward.

    Memory. `context_bytes`: what the process holds on the device before anything is allocated. `slack`: what the allocator
    reserves beyond what is live, as a share of it. `saved_bytes`: what a block keeps for backward beyond the declared, in bytes for
    each token and element of the hidden state. `logits_bytes`: what is live of each logit when the loss is made of all tokens at
    once; 0: the head works chunk by chunk, as it does here.
    """

    name: str = "fourfold"
    overlap_inside: bool = True
    overlap_data: bool = True
    contention: float = 0.1
    host_launch_seconds: float = 5e-6
    host_collective_seconds: float = 20e-6
    step_seconds: float = 0.0
    fused: float = 0.0
    product_speed: float = 1.0
    attention_speed: float = 1.0
    link_speed: float = 1.0
    fused_attention: bool = True
    attention_recomputed: bool = False
    context_bytes: int = 0
    slack: float = 0.0
    saved_bytes: float = 0.0
    logits_bytes: float = 0.0
