"""Instructions: what one rank does in one step, with the buffers, collectives and arithmetic of each."""

from typing import NamedTuple

from fourfold.model.work import NOTHING, Collective, Work
from fourfold.program.opcode import Opcode
from fourfold.program.ops import Op

__all__ = ["Instruction", "Op", "Opcode"]


class Instruction(NamedTuple):
    """One entry of a program. `reads`, `writes`, `frees` name buffers; a write to a buffer that is not live allocates it.

    `work` is what it computes and sends, recorded from the code that runs it; what it costs is priced from that alone.
    `workspace_bytes` lives only while the instruction runs, above what it reads and writes at its end. `stream` is where it
    runs: `compute`, the name of the group whose link it uses, or a direction of the link to the host (`to_host`, `from_host`).
    """

    op: Opcode
    segment: str | None = None
    microbatch: int | None = None
    peer: int | None = None
    handle: str | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    work: Work = NOTHING
    workspace_bytes: int = 0
    stream: str = "compute"

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Collectives of its work, in order."""
        return self.work.collectives

    @property
    def flops(self) -> int:
        """The arithmetic of its matmuls and attention."""
        return self.work.flops

    @property
    def short(self) -> str:
        """The short form, as `B b3 m0` or `wait R b3 m0`: unique among what is in flight."""
        op, segment, microbatch, peer, handle, *_ = self
        if op is Op.WAIT:
            return f"wait {handle}"
        short = op.info.letter
        if segment is not None:
            short += f" {segment}"
        if microbatch is not None:
            short += f" m{microbatch}"
        if peer is not None:
            short += f" r{peer}"
        return short
