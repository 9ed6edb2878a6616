"""The text form of a program: one line an instruction, everything it declares; reading it back gives the same program."""

import hashlib
from typing import get_args

from fourfold.config import UserError
from fourfold.program.instruction import Collective, CollectiveKind, Instruction, Op, Program

HEADER = "fourfold program 1"
_FIELDS = ("reads", "writes", "frees")
_OPS = {op.value: op for op in Op}
_HEADS = {"kind": 2, "pp_rank": 2, "buffer": 3, "resident": 2}
"""Words on the lines that are no instructions."""


def to_text(program: Program) -> str:
    """As read by `from_text`."""
    lines = [HEADER, f"kind {program.kind}", f"pp_rank {program.pp_rank}"]
    lines += [f"buffer {name} {size}" for name, size in program.buffers.items()]
    lines += [f"resident {name}" for name in program.resident]
    lines += [_line(step) for step in program.instructions]
    return "\n".join(lines) + "\n"


def digest(program: Program) -> str:
    """16 hexadecimal digits of the text's SHA-256: ranks with the same digest run the same list."""
    return hashlib.sha256(to_text(program).encode()).hexdigest()[:16]


def _line(step: Instruction) -> str:
    parts = [step.short]
    parts += [f"{key} {' '.join(getattr(step, key))}" for key in _FIELDS if getattr(step, key)]
    parts += [f"comm {c.kind} {c.axes} {c.bytes} {c.group_size}" for c in step.collectives]
    if step.flops:
        parts.append(f"flops {step.flops}")
    if step.workspace_bytes:
        parts.append(f"workspace {step.workspace_bytes}")
    if step.stream != "compute":
        parts.append(f"on {step.stream}")
    return " | ".join(parts)


def from_text(text: str, source: str = "program") -> Program:
    """Parses `to_text`'s output. Raises `UserError` naming the line."""
    lines = text.splitlines()
    if not lines or lines[0] != HEADER:
        raise UserError(f"{source}:1: a program starts with the line {HEADER!r}")
    kind, pp_rank = "train", 0
    buffers: dict[str, int] = {}
    resident: list[str] = []
    steps: list[Instruction] = []
    for number, line in enumerate(lines[1:], start=2):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        try:
            if words[0] in _HEADS and len(words) != _HEADS[words[0]]:
                raise ValueError(f"{words[0]} takes {_HEADS[words[0]] - 1} words")
            if words[0] == "kind":
                kind = words[1]
                if kind not in ("train", "evaluate"):
                    raise ValueError("allowed: train, evaluate")
            elif words[0] == "pp_rank":
                pp_rank = int(words[1])
            elif words[0] == "buffer":
                buffers[words[1]] = int(words[2])
            elif words[0] == "resident":
                resident.append(words[1])
            else:
                step = _parse_line(line)
                if _parts(_line(step)) != _parts(line):
                    raise ValueError(f"would be written {_line(step)!r}")
                steps.append(step)
        except (ValueError, IndexError, KeyError) as error:
            raise UserError(f"{source}:{number}: cannot read {line!r} ({error})") from None
    return Program(pp_rank, kind, tuple(steps), buffers, tuple(resident))


def _parts(line: str) -> list[list[str]]:
    """The parts of a line without regard to their order and to spaces."""
    head, *parts = (part.split() for part in line.split("|"))
    return [head, *sorted(parts)]


def _parse_line(line: str) -> Instruction:
    head, *parts = line.split(" | ")
    values: dict[str, object] = _parse_head(head)
    collectives: list[Collective] = []
    for part in parts:
        key, *words = part.split()
        if key in _FIELDS:
            values[key] = tuple(words)
        elif key == "comm":
            kind, axes, size, group_size = words
            if kind not in get_args(CollectiveKind):
                raise ValueError(f"unknown collective {kind}")
            collectives.append(Collective(kind, axes, int(size), int(group_size)))  # type: ignore[arg-type]
        elif key == "flops":
            values["flops"] = int(words[0])
        elif key == "workspace":
            values["workspace_bytes"] = int(words[0])
        elif key == "on":
            values["stream"] = words[0]
        else:
            raise ValueError(f"unknown field {key}")
    return Instruction(collectives=tuple(collectives), **values)  # type: ignore[arg-type]


def _parse_head(head: str) -> dict[str, object]:
    first, *words = head.split()
    op = _OPS[first]
    if op is Op.WAIT:
        if not words:
            raise ValueError("it waits for nothing")
        return {"op": op, "handle": " ".join(words)}
    values: dict[str, object] = {"op": op}
    for word in words:
        if word[0] in "mr" and word[1:].isdigit():
            values["microbatch" if word[0] == "m" else "peer"] = int(word[1:])
        else:
            values["segment"] = word
    return values
