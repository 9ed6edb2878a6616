"""The legend of a program: what each letter, segment and number of an instruction stands for."""

from collections.abc import Sequence

from fourfold.program import Op, Program

MEANINGS = {
    Op.LOAD: "load a microbatch",
    Op.COUNT: "count valid target tokens",
    Op.FORWARD: "forward",
    Op.RECOMPUTE: "recompute the forward",
    Op.BACKWARD: "backward",
    Op.BACKWARD_INPUT: "input gradient",
    Op.BACKWARD_WEIGHT: "weight gradient",
    Op.REPLAY: "compute once more and compare",
    Op.DISPATCH_TOKENS: "send tokens to their experts",
    Op.DISPATCH_GRADIENT: "send gradients to the experts",
    Op.EXPERTS_FORWARD: "experts forward",
    Op.EXPERTS_BACKWARD: "experts backward",
    Op.COMBINE_TOKENS: "send outputs back",
    Op.COMBINE_GRADIENT: "send gradients back",
    Op.FINISH_FORWARD: "rest of the forward",
    Op.FINISH_BACKWARD: "rest of the backward",
    Op.OFFLOAD: "offload to the host",
    Op.FETCH: "fetch from the host",
    Op.SEND_ACTIVATION: "send activations",
    Op.SEND_GRADIENT: "send their gradient",
    Op.RECV_ACTIVATION: "receive activations",
    Op.RECV_GRADIENT: "receive their gradient",
    Op.GATHER: "all-gather parameters (ZeRO-3)",
    Op.FREE: "free gathered parameters",
    Op.REDUCE: "reduce gradients",
    Op.REDUCE_TIED: "reduce tied gradients",
    Op.SUM_LOSS: "sum the loss",
    Op.BALANCE: "balance experts",
    Op.CHECKSUM: "compare checksums",
    Op.CLIP_NORM: "gradient norm",
    Op.MOMENTUM: "momentum of matrices",
    Op.BRING: "all-gather directions (Muon)",
    Op.ORTHOGONALIZE: "orthogonalize own matrices",
    Op.ALL_GATHER_HOMES: "all-gather orthogonal matrices",
    Op.UPDATE: "optimizer update",
    Op.PARAMETER_ALL_GATHER: "all-gather updated parameters",
    Op.WAIT: "join what was started",
}
"""A few plain words for each operation, whose value is its letter."""
_SEGMENTS = {
    "embed": "embed = embedding",
    "b": "b3 = block 3",
    "b.experts": "b3.experts = its experts",
    "mtp": "mtp0 = first MTP module",
    "mtp.experts": "mtp0.experts = its experts",
    "head": "head = final norm + unembedding + loss",
}


def legend_lines(program: Program) -> list[str]:
    """The operations that occur in `program`, then its segments and numbers, as aligned text."""
    used = {step.op for step in program.instructions}
    names = {step.segment or "" for step in program.instructions}
    words = [f"{op.value} = {meaning}" for op, meaning in MEANINGS.items() if op in used]
    kinds = {"".join(c for c in name if not c.isdigit()) for name in names}
    parts = [meaning for kind, meaning in _SEGMENTS.items() if kind in kinds]
    if any(step.microbatch is not None for step in program.instructions):
        parts.append("m0 = microbatch 0")
    if any(step.peer is not None for step in program.instructions):
        parts.append("r1 = rank 1")
    return [*wrapped("letters", "", words), *wrapped("names", "", parts)]


def wrapped(name: str, head: str, items: Sequence[str], width: int = 78) -> list[str]:
    """`name  head item, item, ...`, continued under the first item where the line is full."""
    indent = " " * 18
    lines, line = [], f"{name:<16}  {head}"
    for index, item in enumerate(items):
        text = item + (", " if index + 1 < len(items) else "")
        if len(line) + len(text.rstrip()) > width:
            lines.append(line.rstrip())
            line = indent
        line += text
    return [*lines, line.rstrip()]
