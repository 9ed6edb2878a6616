"""The inputs of every kind's pass, beside its own tensors."""

from dataclasses import dataclass

from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.operations import Operations
from fourfold.model.parallel import Parallel


@dataclass(frozen=True)
class Pass:
    """One pass over a half of a layer. `saved` is that half's own; `balancing`: what a router reads and records,
    None: nothing beside its weights."""

    env: Environment
    batch: Microbatch
    saved: Saved
    balancing: Balancing | None = None

    @property
    def ops(self) -> Operations:
        return self.env.ops

    @property
    def parallel(self) -> Parallel:
        return self.env.parallel
