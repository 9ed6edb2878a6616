"""What the verifier reports."""

from dataclasses import dataclass

from fourfold.program.instruction import Instruction


@dataclass(frozen=True)
class Fault:
    """One broken law: where, what, and what would mend it."""

    rank: int
    index: int
    instruction: Instruction | None
    message: str
    fix: str

    def __str__(self) -> str:
        where = f"#{self.index} `{self.instruction.short}`" if self.instruction is not None else "declarations"
        return f"rank {self.rank}, {where}: {self.message}; {self.fix}"
