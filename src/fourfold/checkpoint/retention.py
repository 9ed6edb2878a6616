"""Which checkpoints of a run stay: the latest, some for good, the best, and no more bytes than there may be."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """`newest`: how many of the latest stay. For good: multiples of `every`, and `steps`. `best`: the step that stays whatever
    comes. `most`: how many there may be; None: any number."""

    newest: int
    every: int | None = None
    steps: frozenset[int] = frozenset()
    best: int | None = None
    most: int | None = None

    def to_delete(self, saved: Sequence[int]) -> list[int]:
        """The steps to delete among those that are saved, rising."""
        latest = set(saved[-max(self.newest, 1) :])
        safe = latest | {self.best}
        stays = [step for step in saved if step in safe or self._is_for_good(step)]
        spare = [step for step in stays if step not in safe]
        beyond = max(0, len(stays) - self.most) if self.most is not None else 0
        kept = set(stays) - set(spare[:beyond])
        return [step for step in saved if step not in kept]

    def _is_for_good(self, step: int) -> bool:
        return step in self.steps or (self.every is not None and step % self.every == 0)


def most_of(max_bytes: int | None, each: int) -> int | None:
    """How many checkpoints of so many bytes there may be: one at least."""
    return None if max_bytes is None else max(1, max_bytes // max(1, each))


def stages_end(ends: Collection[int], is_kept: bool) -> frozenset[int]:
    """The steps at which a run's stages but the last end, where their checkpoints are kept."""
    return frozenset(sorted(ends)[:-1]) if is_kept else frozenset()
