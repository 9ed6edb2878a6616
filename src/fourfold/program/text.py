"""The text form of a program: one line an instruction, everything it declares; reading it back gives the same program.

The work of each pass over a segment stands once, on a line `work N | ...`; instructions name that line.
"""

import hashlib
from collections.abc import Mapping

from fourfold.config import UserError
from fourfold.model.work import Collective, SavedParts, Work, sends
from fourfold.program.capabilities import BY_LETTER
from fourfold.program.instruction import Instruction
from fourfold.program.ops import Op
from fourfold.program.program import Program
from fourfold.program.work_text import collective_text, is_plain, parse_collective, parse_work, work_text

HEADER = "fourfold program 1"
_FIELDS = ("reads", "writes", "frees")
_HEADS = {"kind": 2, "pp_rank": 2, "buffer": 3, "resident": 2, "saves": 4}
"""Words on the lines that are no instructions."""


def to_text(program: Program) -> str:
    """Text that `from_text` reads."""
    lines = [HEADER, f"kind {program.kind}", f"pp_rank {program.pp_rank}"]
    lines += [f"buffer {name} {size}" for name, size in program.buffers.items()]
    lines += [f"resident {name}" for name in program.resident]
    lines += [f"saves {name} {parts.operands} {parts.attended}" for name, parts in program.saved_parts.items()]
    numbers: dict[Work, int] = {}
    for step in program.instructions:
        if not is_plain(step.work):
            numbers.setdefault(step.work, len(numbers))
    lines += [f"work {number} | {work_text(work)}" for work, number in numbers.items()]
    lines += [_line(step, numbers) for step in program.instructions]
    return "\n".join(lines) + "\n"


def digest(program: Program) -> str:
    """16 hexadecimal digits of the text's SHA-256: ranks with the same digest run the same list."""
    return hashlib.sha256(to_text(program).encode()).hexdigest()[:16]


def _line(step: Instruction, numbers: Mapping[Work, int]) -> str:
    parts = [step.short]
    parts += [f"{key} {' '.join(getattr(step, key))}" for key in _FIELDS if getattr(step, key)]
    if is_plain(step.work):
        parts += [f"comm {collective_text(collective)}" for collective in step.collectives]
    else:
        parts.append(f"work {numbers[step.work]}")
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
    saved_parts: dict[str, SavedParts] = {}
    works: dict[str, Work] = {}
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
            elif words[0] == "saves":
                saved_parts[words[1]] = SavedParts(int(words[2]), int(words[3]))
            elif words[0] == "work":
                _define(line, works)
            else:
                step = _parse_line(line, works)
                written = _line(step, {work: int(number) for number, work in works.items()})
                if _parts(written) != _parts(line):
                    raise ValueError(f"would be written {written!r}")
                steps.append(step)
        except (ValueError, IndexError, KeyError) as error:
            raise UserError(f"{source}:{number}: cannot read {line!r} ({error})") from None
    return Program(pp_rank, kind, tuple(steps), buffers, tuple(resident), saved_parts)


def _parts(line: str) -> list[list[str]]:
    """The parts of a line without regard to their order and to spaces."""
    head, *parts = (part.split() for part in line.split("|"))
    return [head, *sorted(parts)]


def _define(line: str, works: dict[str, Work]) -> None:
    """Reads `work N | ...`."""
    head, _, text = line.partition(" | ")
    _, number = head.split()
    if number != str(len(works)):
        raise ValueError(f"works are numbered in order; this is number {len(works)}")
    work = parse_work(text)
    if is_plain(work) or work in works.values():
        raise ValueError("it has no need of a number, or has one")
    works[number] = work


def _parse_line(line: str, works: Mapping[str, Work]) -> Instruction:
    head, *parts = line.split(" | ")
    values: dict[str, object] = _parse_head(head)
    collectives: list[Collective] = []
    for part in parts:
        key, *words = part.split()
        if key in _FIELDS:
            values[key] = tuple(words)
        elif key == "comm":
            collectives.append(parse_collective(words))
        elif key == "work":
            values["work"] = works[words[0]]
        elif key == "workspace":
            values["workspace_bytes"] = int(words[0])
        elif key == "on":
            values["stream"] = words[0]
        else:
            raise ValueError(f"unknown field {key}")
    if collectives and "work" in values:
        raise ValueError("collectives stand with the work that has a number")
    return Instruction(**{"work": sends(*collectives), **values})  # type: ignore[arg-type]


def _parse_head(head: str) -> dict[str, object]:
    first, *words = head.split()
    op = BY_LETTER[first]
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
