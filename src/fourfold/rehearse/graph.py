"""A step captured as a CUDA graph, rehearsed: two captures of steps with other numbers must be the same operations.

A graph repeats whatever the host gave the device while it was captured. A number that the host gives in one step and another in
the next (a learning rate, a count), a copy from the host, or an operation whose size depends on data would be repeated as it was.
NCCL's and cuBLAS's part in a capture is not rehearsed.
"""

from collections.abc import Callable
from itertools import zip_longest

from fourfold.config.optimizers import OptimizerSection
from fourfold.program import Program
from fourfold.program.view import RankView
from fourfold.rehearse.journal import Launch, RehearsalFault
from fourfold.rehearse.rank import PretendedRank, pretended_rank
from fourfold.rehearse.shapes import KnownShapes
from fourfold.runtime.graph import Replayable, StepGraph

STEPS = ((1e-4, 0), (2e-4, 7))
"""Learning rate and updates before, of the two steps that are captured."""


class _Captured(Replayable):
    """A graph of nothing."""

    def replay(self) -> None:
        return


def rehearse_graph(
    view: RankView, program: Program, rank: int, optimizer: OptimizerSection, shapes: KnownShapes
) -> int:
    """The operations that a rank's captured step has. Raises `RehearsalFault` where a replay would not be a step."""
    with pretended_rank(view, rank, optimizer, shapes, fixed=True) as pretended:
        first, second = (_captured(pretended, program, lr, updates) for lr, updates in STEPS)
    for one, other in zip_longest(first, second):
        if one != other:
            raise RehearsalFault(f"rank {rank}: {_difference(one, other)}; a graph repeats what it captured")
    return len(first)


def _captured(pretended: PretendedRank, program: Program, lr: float, updates: int) -> list[Launch]:
    journal, found = pretended.journal, list[Launch]()
    journal.instruction = "start"

    def capture(issue: Callable[[], None]) -> Replayable:
        journal.captured = found
        with pretended.faults():
            issue()
        journal.captured = None
        return _Captured()

    pretended.executor.updates = updates
    pretended.follow(program)
    StepGraph(pretended.executor, program, capture, eager_steps=0).run(pretended.feed(), lr)
    return found


def _difference(one: Launch | None, other: Launch | None) -> str:
    if one is None or other is None or one[:3] != other[:3]:
        return f"a step has {_text(one)} where another has {_text(other)}"
    return f"{_text(one)} is given {one.numbers} in a step and {other.numbers} in another"


def _text(launch: Launch | None) -> str:
    return "nothing" if launch is None else f"{launch.operation} in `{launch.instruction}`"
