"""The legend of a program: what each letter, segment and number of an instruction stands for."""

from collections.abc import Sequence

from fourfold.program import Program
from fourfold.program.capabilities import OPCODES

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
    words = [f"{op.value} = {op.info.meaning}" for op in OPCODES if op in used]
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
