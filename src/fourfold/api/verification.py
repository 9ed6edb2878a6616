"""`fourfold.verify`: the programs of all ranks of a run, checked without running them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourfold.api.inputs import ClusterInput, Overrides, RunInput
from fourfold.api.programs import RunProgram, compiled_run, read_program, run_heading
from fourfold.config import UserError
from fourfold.launch.resolve import ResolvedRun
from fourfold.program import Fault, Program, digest
from fourfold.program import verify as verify_programs
from fourfold.report.format_run import layout_line, model_line, transport_lines
from fourfold.report.program_table import distinct_programs, proof, proof_lines


@dataclass(frozen=True, repr=False)
class Verification:
    """The verifier's answer. `programs`: what was checked, by rank, the training step before the evaluation. `faults`: each names
    rank, index, instruction and the fix. The answer is true where there is none."""

    resolved: ResolvedRun
    programs: tuple[Mapping[int, Program], ...]
    faults: tuple[Fault, ...]

    @classmethod
    def of(
        cls, resolved: ResolvedRun, programs: Sequence[Mapping[int, Program]], memory_limit_bytes: int | None = None
    ) -> "Verification":
        """Checks groups of programs. `memory_limit_bytes`: a peak above it is a fault."""
        faults = [
            fault
            for group in programs
            for fault in verify_programs(group, resolved.spec_of(_kind(group)), memory_limit_bytes)
        ]
        return cls(resolved, tuple(programs), tuple(faults))

    @classmethod
    def of_run(cls, resolved: ResolvedRun, program: Path | None = None) -> "Verification":
        """Checks a run's training step and evaluation, or its programs with the one in a file. Raises `UserError`."""
        if program is None:
            return cls.of(resolved, [resolved.train_programs, resolved.evaluate_programs])
        return cls.of(resolved, [resolved.with_program(read_program(program, resolved))])

    @property
    def sound(self) -> bool:
        """Whether the programs are proved to run to their end: no fault was found."""
        return not self.faults

    def __bool__(self) -> bool:
        return self.sound

    def proofs(self) -> list[dict[str, Any]]:
        """The extent of the proof for each group of programs; empty where there are faults."""
        return [proof(dict(group)) for group in self.programs] if self.sound else []

    def lines(self, where: str) -> list[str]:
        """The text of `fourfold show --verify`, for the transport of `where`."""
        if not self.sound:
            number = len(self.faults)
            return [f"NOT sound: {number} fault{'s' if number > 1 else ''}", *map(str, self.faults)]
        head = [model_line(self.resolved), layout_line(self.resolved), *transport_lines(self.resolved, where)]
        return [*head, *(line for each in self.proofs() for line in proof_lines(each))]

    def to_json(self) -> dict[str, Any]:
        """The document of `fourfold show --verify --json`."""
        faults = [
            {
                "rank": fault.rank,
                "index": fault.index,
                "instruction": fault.instruction.short if fault.instruction is not None else None,
                "message": fault.message,
                "fix": fault.fix,
            }
            for fault in self.faults
        ]
        proofs = [
            {**extent, "digests": [digest(program) for program in distinct_programs(dict(group))]}
            for extent, group in zip(self.proofs(), self.programs if self.sound else (), strict=True)
        ]
        return {**run_heading(self.resolved), "sound": self.sound, "proofs": proofs, "faults": faults}

    def __repr__(self) -> str:
        if self.sound:
            return f"Verification(sound, {self.resolved.layout.world_size} ranks)"
        return "\n".join([f"Verification(NOT sound, {len(self.faults)} faults)", *map(str, self.faults)])

    def _repr_html_(self) -> str:
        from fourfold.api.notebook import verification_html

        return verification_html(self)


def verify(
    run: RunInput | RunProgram,
    overrides: Overrides = (),
    *,
    programs: Mapping[int, Program] | None = None,
    ranks: int | None = None,
    cluster: ClusterInput | None = None,
    memory_limit_bytes: int | None = None,
    trust: bool = False,
) -> Verification:
    """Check the programs of all ranks without running them: no deadlock, no read of freed memory, each gradient reduced once.

    `run`: a run, whose training step and evaluation are checked, or the `Program` of a run. `programs`: check these instead, by
    rank. `ranks`, `cluster` and `trust` as in `Program.of`. `memory_limit_bytes`: a peak above it is a fault.

    Raises `UserError` where the run is wrong. A fault is no exception: `faults` names it, and the answer is false. A rank that has
    no program is a fault, since a proof speaks of all ranks.
    """
    if isinstance(run, RunProgram):
        if overrides or programs is not None or ranks is not None or cluster is not None:
            raise UserError(
                "overrides, programs, ranks and cluster belong to a run; what works: fourfold.verify(program)"
            )
        return Verification.of(run.resolved, [run.by_rank()], memory_limit_bytes)
    resolved = compiled_run(run, overrides, ranks, cluster, trust)
    groups = [programs] if programs is not None else [resolved.train_programs, resolved.evaluate_programs]
    return Verification.of(resolved, groups, memory_limit_bytes)


def _kind(programs: Mapping[int, Program]) -> str:
    return next((program.kind for program in programs.values()), "train")
