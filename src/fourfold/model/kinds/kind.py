"""A kind of layer: the inputs of its pass beside its own tensors, and a mixer as others see it."""

from dataclasses import dataclass
from typing import Any

from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Parallel
from fourfold.model.parameter import Widths
from fourfold.model.rope import Positional, Rope
from fourfold.model.tensor_parallel import InputSource


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


class Mixer:
    """The half of a layer in which a token sees others. A kind is a frozen dataclass whose fields are the sizes that it computes
    with: two that are equal are recorded and priced once.

    Others ask for `words`, for people; `divided`, sizes that a degree of tensor parallelism must divide, by the keys of a run
    file; `features`, numbers of a token on a rank that meet in a matmul, which formats of 8 bits scale together, by what they are;
    `attends`, whether tokens see each other by scores, within `window` and `chunk`, turned by `rope`: a mixer that does not reads
    them in order, in zig-zag, with their places in documents; `state_flops`, FLOPs of a token's forward beside those of matmuls
    with weights."""

    attends: bool = True
    rope: Rope | None = None
    window: int | None = None
    chunk: int | None = None

    @property
    def positional(self) -> tuple[Positional, ...]:
        """The tables that it reads by position."""
        return () if self.rope is None else (self.rope,)

    @property
    def words(self) -> str:
        raise NotImplementedError

    @property
    def divided(self) -> dict[str, int]:
        raise NotImplementedError

    def features(self, tp: int) -> dict[str, int]:
        """By `tp` ranks that share each matrix."""
        return {}

    @property
    def state_flops(self) -> int:
        return 0

    def declare(self, widths: Widths) -> Any:
        """A record of parameters, a `Parameters[Declared]` of the kind's own."""
        raise NotImplementedError

    def forward(self, run: Pass, given: list[Array], w: Any, residual: Array | None = None) -> Array:
        """residual + the output. `given`: x [t, hidden], taken out of the list -> [t, hidden]; `w`: as declared, of `Weight`.
        `residual` [t, hidden] None: it is yet to be added. Keeps in `run.saved` what backward reads."""
        raise NotImplementedError

    def backward(self, run: Pass, grad: Array, w: Any, source: InputSource) -> Array:
        """grad [t, hidden] of the output -> the gradient of the residual stream [t, hidden]; adds the weights' gradients. `source`:
        has x once more, and joins its gradient with that of what goes past the mixer."""
        raise NotImplementedError
