"""A fault, as the verifier reports it."""

from dataclasses import dataclass

from fourfold.program.instruction import Instruction
from fourfold.program.program import Program


@dataclass(frozen=True)
class Fault:
    """One broken law: where, what, and what would mend it."""

    rank: int
    index: int
    instruction: Instruction | None
    message: str
    fix: str

    @classmethod
    def at(cls, rank: int, program: Program, index: int, message: str, fix: str) -> "Fault":
        """A fault of the instruction at `index`; of the program itself where it has no instruction."""
        steps = program.instructions
        return cls(rank, max(index, 0), steps[index] if steps else None, message, fix)

    def __str__(self) -> str:
        where = f"#{self.index} `{self.instruction.short}`" if self.instruction is not None else "declarations"
        return f"rank {self.rank}, {where}: {self.message}; {self.fix}"
