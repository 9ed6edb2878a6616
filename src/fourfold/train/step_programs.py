"""A rank's training steps: the plain one, and those with the checks of silent corruption that are due in some of them."""

from dataclasses import replace
from typing import NamedTuple

from fourfold.config.schema import FaultsSection
from fourfold.program import Program, StepSpec, lower_step
from fourfold.program.liveness import ledger
from fourfold.program.view import RankView


class StepProgram(NamedTuple):
    """A step's program, and the bytes that it declares to send, by axes."""

    spec: StepSpec
    program: Program
    declared_bytes: dict[str, int]


class StepPrograms:
    """Each is compiled when it first comes."""

    def __init__(self, view: RankView, faults: FaultsSection) -> None:
        self._view, self._faults = view, faults
        self._known: dict[tuple[bool, bool], StepProgram] = {}

    @property
    def plain(self) -> StepProgram:
        """Without checks."""
        return self._of(self._view.spec)

    def at(self, step: int) -> StepProgram:
        """The program of step number `step`."""
        return self._of(self._view.spec.at_step(step, self._faults))

    def _of(self, spec: StepSpec) -> StepProgram:
        key = spec.checksum, spec.replay
        if key not in self._known:
            program = lower_step(replace(self._view, spec=spec))
            self._known[key] = StepProgram(spec, program, ledger(program))
        return self._known[key]
