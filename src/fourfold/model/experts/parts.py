"""A pass over a block in three parts, cut where rows set out for their experts and where they set out on their way back.

Another microbatch computes between the parts, while rows travel (DeepSeek-AI 2024, section 3.2.1). Without cuts the same code runs
from its start to its end.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import cast

from fourfold.model.environment import Environment, Saved
from fourfold.model.operations import Array
from fourfold.model.parallel import Group, Pending

Parts = Generator[None, None, Array]
"""A pass that pauses where an all-to-all has been prepared, twice in a routed block; its result is what it returns."""


def run_through(parts: Parts) -> Array:
    """Runs a pass without a pause. Returns its result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


class PassInParts:
    """A pass whose all-to-alls over `ep` wait to be started: `advance`, `start`, join, `advance`, `start`, join, `advance`.

    `saved`: where a forward keeps what its backward reads.
    """

    def __init__(self, env: Environment, run: Callable[[Environment], Parts], saved: Saved | None = None) -> None:
        assert env.parallel.ep is not None
        self.saved = saved
        self._held = _HeldGroup(env.parallel.ep)
        self._parts = run(replace(env, parallel=replace(env.parallel, ep=cast(Group, self._held))))

    def advance(self) -> Array | None:
        """Computes the next part; the last gives the pass's result."""
        try:
            next(self._parts)
        except StopIteration as end:
            return end.value
        return None

    def start(self) -> list[Pending]:
        """Starts the all-to-alls that the latest part has prepared."""
        return self._held.start()


class _HeldGroup:
    """The group `ep` of a pass in parts: its all-to-alls start when they are told to, or at once where they are waited for."""

    def __init__(self, group: Group) -> None:
        self.size, self.index, self._group = group.size, group.index, group
        self._prepared: list[_Held] = []

    def all_to_all(
        self,
        received: Array,
        sent: Array,
        received_rows: Sequence[int] | None = None,
        sent_rows: Sequence[int] | None = None,
    ) -> "_Held":
        held = _Held(lambda: self._group.all_to_all(received, sent, received_rows, sent_rows))
        self._prepared.append(held)
        return held

    def start(self) -> list[Pending]:
        prepared, self._prepared = self._prepared, []
        return [each.start() for each in prepared if not each.is_over]


class _Held:
    """An all-to-all that is not started before somebody asks for it. Refers to its rows until it is over."""

    def __init__(self, begin: Callable[[], Pending]) -> None:
        self._begin: Callable[[], Pending] | None = begin
        self._work: Pending | None = None

    @property
    def is_over(self) -> bool:
        return self._begin is None and self._work is None

    def start(self) -> Pending:
        if self._begin is not None:
            self._work, self._begin = self._begin(), None
        assert self._work is not None
        return self._work

    def wait(self) -> None:
        self.start().wait()
        self._work = None
