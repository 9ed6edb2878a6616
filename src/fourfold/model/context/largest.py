"""The largest score of attention: the pass of attention over the same pieces and the same transfers, with a kernel that keeps the
largest score of a tile and no output.

A flash kernel's log-sum-exp bounds it alone: max <= lse <= max + log(keys). Scores are those before a cap and without sinks."""

from typing import Any

from fourfold.model.context.attention import NOT_SPLIT, attend_pieces
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.kinds.kind import Mixer
from fourfold.model.operations import Array, Operations


def largest_score_(into: Array, env: Environment, mixer: Mixer, batch: Microbatch, saved: Saved) -> None:
    """Raises `into`, a scalar, to the largest score of this rank's queries. `saved`: as the mixer's forward left it; it stays so.
    All ranks of `ring` call it together."""
    context = env.parallel.context or NOT_SPLIT
    q, k, _ = saved.see("qkv")
    ranks = context.ring.size if context.ring is not None else 1
    documents = batch.documents[q.shape[0], q.shape[1] * ranks, mixer.window, mixer.chunk]
    measuring = Environment(_Measuring(env.ops, into), env.model, env.parallel)
    attend_pieces(measuring, [q, k, k[..., :0]], context, documents, Saved(keeps=False), saved.see("scores"))


class _Measuring:
    """The operations of a pass of attention without values: outputs have no elements, and the log-sum-exp means nothing."""

    def __init__(self, ops: Operations, into: Array) -> None:
        self._ops, self._into = ops, into

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def attend(
        self, q: Array, k: Array, v: Array, causal: bool, scale: float, documents: Any = None, window: int | None = None
    ) -> tuple[Array, Array]:
        self._ops.largest_score_(self._into, q, k, causal, scale, documents, window)
        dtype = self._ops.accumulation_dtype(q)
        return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_zeros(q.shape[:-1], dtype=dtype)

    def attend_capped(
        self, q: Array, k: Array, v: Array, causal: bool, scale: float, cap: float
    ) -> tuple[Array, Array]:
        return self.attend(q, k, v, causal, scale)
