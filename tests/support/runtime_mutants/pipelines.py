"""Pipelines that lose, mix up or exchange what they keep and send."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from fourfold.model.weights import Deferred
from fourfold.program import Op
from fourfold.program.buffers import deferred
from fourfold.runtime.collectives import AxisGroup, Handle
from fourfold.runtime.compute import SegmentRunner
from fourfold.runtime.executor import Executor
from tests.support.runtime_mutants.edits import mutant, replaced


@mutant
def tied_gradients_stay_on_their_stages() -> Iterator[None]:
    def reduce_tied(self: Executor, step: Any) -> None:
        self.start(step, Handle(iter(())))

    with patch.object(Executor, "_reduce_tied", reduce_tied):
        yield


@mutant
def weight_gradients_of_a_microbatch_are_dropped() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward_weight(self: SegmentRunner, step: Any) -> None:
            if step.microbatch == 0:
                self._live[deferred(step.segment, 0)] = Deferred()
            original(self, step)

        return backward_weight

    with replaced(SegmentRunner, "backward_weight", make):
        yield


@mutant
def weight_gradients_share_one_deferral() -> Iterator[None]:
    """A microbatch's W runs what another microbatch deferred, if there is one."""

    def make(original: Any) -> Any:
        def backward_input(self: SegmentRunner, step: Any) -> None:
            original(self, step)
            first = self._live.setdefault("first", {})
            name = deferred(step.segment, step.microbatch)
            self._live[name] = first.setdefault(step.segment, self._live[name])

        return backward_input

    with replaced(SegmentRunner, "backward_input", make):
        yield


@mutant
def gradients_of_the_microbatch_before_are_received() -> Iterator[None]:
    def make(original: Any) -> Any:
        def receive(self: Executor, step: Any) -> None:
            original(self, step)
            if step.op is not Op.RECV_GRADIENT:
                return
            name = step.writes[0]
            before, self.kept = getattr(self, "kept", None), self.live[name]  # type: ignore[attr-defined]
            if before is not None:
                self.live[name] = before

        return receive

    with replaced(Executor, "_receive", make):
        yield


@mutant
def tokens_are_exchanged_on_the_way_to_the_next_stage() -> Iterator[None]:
    with replaced(AxisGroup, "send", lambda original: lambda self, x, peer: original(self, x.roll(1, 0), peer)):
        yield
