"""A rank's training steps: the plain one, those with the checks of silent corruption or the measurements that are due in some of
them, and those with fewer microbatches while the batch grows."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from fourfold.config import RunConfig
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

    def __init__(self, view: RankView, config: RunConfig, sequences: Callable[[int], int]) -> None:
        """`sequences`: of the global batch of a step."""
        self._view, self._config, self._sequences = view, config, sequences
        self._known: dict[tuple[bool, bool, tuple[str, ...], int], StepProgram] = {}

    @property
    def plain(self) -> StepProgram:
        """Without checks and measurements."""
        return self._of(self._view.spec)

    def at(self, step: int) -> StepProgram:
        """The program of step number `step`."""
        spec = self._view.spec.at_step(step, self._config.faults, self._config.metrics)
        return self._of(spec.with_sequences(self._sequences(step)))

    def _of(self, spec: StepSpec) -> StepProgram:
        key = spec.checksum, spec.replay, spec.sampled, spec.layout.num_microbatches
        if key not in self._known:
            program = lower_step(replace(self._view, spec=spec))
            self._known[key] = StepProgram(spec, program, ledger(program))
        return self._known[key]
