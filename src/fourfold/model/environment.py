"""The environment of a segment's functions: backend, model and groups; and `Saved`, where they keep activations."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fourfold.config import ModelConfig
from fourfold.model.context.placement import Placement
from fourfold.model.low_precision import GemmRecipe, Gemms, LowPrecisionGemms
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import ALONE, Parallel
from fourfold.model.rope import Positional

SELECTIVE = frozenset(
    {"normed", "normed_latent", "normed_query", "down_input", "shared_down_input", "both", "gated_output"}
)
"""Activations that selective recomputation rebuilds: outputs of norms and inputs of down projections. They are cheap beside
the matmuls that read them."""


@dataclass(frozen=True)
class Environment:
    """`ops`: the backend; `parallel`: the groups of this rank; `recipe`: of low-precision matmuls, None: in the compute format."""

    ops: Operations
    model: ModelConfig
    parallel: Parallel = ALONE
    recipe: GemmRecipe | None = None

    @cached_property
    def gemms(self) -> Gemms:
        """The matmuls of blocks' linear layers."""
        return self.ops if self.recipe is None else LowPrecisionGemms(self.ops, self.recipe, self.parallel.scales)

    def gemms_of(self, features: int) -> Gemms:
        """Matmuls of a linear layer that writes so many features on every rank: in the compute format where they are no multiple of
        those that share a scale."""
        return self.ops if self.recipe is not None and features % self.recipe.multiple else self.gemms


@dataclass(frozen=True)
class Microbatch:
    """Inputs of segments beside hidden states. tokens, targets [batch, seq] (-100: no loss); rope: cosines and sines [seq or batch
    x seq, 1, width / 2] of every rotary embedding that some layer has, and the factors of temperatures; document_lengths: per row
    the lengths of its documents, or None where attention may cross them; positions [batch, seq]: where each token stands in its
    document, None unless they are learned, or some layer is recurrent and documents are kept apart; ahead_tokens, ahead_targets
    [D, batch, seq]: what the D MTP modules read, the k-th the tokens k places on in their document (any where there is none) and
    those tokens' targets (-100 where there is none); documents: what attention derives from their lengths in the first layer, for
    all; placement: which chunks of the rows each ring rank of context parallelism has, None for zig-zag."""

    tokens: Array
    targets: Array
    rope: Mapping[Positional, tuple[Array, Array]]
    document_lengths: Sequence[Sequence[int]] | None = None
    positions: Array | None = None
    ahead_tokens: Array | None = None
    ahead_targets: Array | None = None
    placement: Placement | None = None
    documents: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)


class Saved:
    """The arrays that a segment's backward reads, by name; each is taken once, so that it is freed when its reader is done.

    `rebuilt`: names that are not kept but computed again in backward (the recompute policy); `keeps` False: a forward without a
    backward, which keeps nothing. `part`: the names of a part of it, which cannot meet those of another part.
    """

    __slots__ = ("_arrays", "_keeps", "_part", "_rebuilt")

    def __init__(self, rebuilt: Iterable[str] = (), keeps: bool = True) -> None:
        self._arrays: dict[tuple[str, str], Array] = {}
        self._rebuilt = frozenset(rebuilt)
        self._keeps = keeps
        self._part = ""

    def part(self, name: str) -> "Saved":
        """A view of these arrays by a part of the segment, which names its own."""
        view = Saved(self._rebuilt, self._keeps)
        view._arrays, view._part = self._arrays, name
        return view

    @property
    def keeps(self) -> bool:
        """Whether a backward follows."""
        return self._keeps

    def keep(self, **arrays: Array | None) -> None:
        """Keeps those that are there."""
        if self._keeps:
            for name, array in arrays.items():
                if name not in self._rebuilt and array is not None:
                    self._arrays[self._part, name] = array

    def take(self, name: str) -> Array:
        """The array, no longer kept. Raises `KeyError` where it was not."""
        return self._arrays.pop((self._part, name))

    def take_if_kept(self, name: str) -> Array | None:
        """The array, taken out; None where it is to be rebuilt, or there is none."""
        return self._arrays.pop((self._part, name), None)

    def see(self, name: str) -> Array:
        """The array, kept on."""
        return self._arrays[self._part, name]

    def changed(self, change: Callable[[Array], Any]) -> "Saved":
        """A copy with what `change` makes of every array."""
        result = Saved(self._rebuilt, self._keeps)
        result._arrays = {name: change(array) for name, array in self._arrays.items()}
        return result

    def bytes_of(self, name: str) -> int:
        """The size of the arrays of that name, of any part."""
        return sum(int(array.nbytes) for (_, each), array in self._arrays.items() if each == name)
