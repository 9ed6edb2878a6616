"""One rank's part of a parameter: which dims are split, over which axes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from fourfold.model.spec import Domain, ParameterSpec


@dataclass(frozen=True)
class LocalParameter:
    """The full parameter, or an even part along some dims.

    `splits`: (dim, axis, degree) of every dim that is split; the rank's coordinate on the axis says which part it has.
    """

    spec: ParameterSpec
    splits: tuple[tuple[int, str, int], ...] = ()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = list(self.spec.shape)
        for dim, _, degree in self.splits:
            sizes[dim] //= degree
        return tuple(sizes)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def weight_decay(self) -> bool:
        return self.spec.weight_decay

    def box(self, coordinates: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
        """[start, end) along every dim of the full parameter, for the rank at these coordinates."""
        starts = [0] * len(self.shape)
        for dim, axis, _ in self.splits:
            starts[dim] = coordinates[axis] * self.shape[dim]
        return tuple((start, start + size) for start, size in zip(starts, self.shape, strict=True))


def local_parameter(spec: ParameterSpec, domain: Domain, degree: Callable[[str], int]) -> LocalParameter:
    """The part of a parameter on a mesh, `degree` being that of an axis: experts over `ep`, the tensor dim over `tp`, `etp` for
    experts, or `tp_head` where its parts are key and value heads."""
    splits: list[tuple[int, str, int]] = []
    if domain == "expert" and degree("ep") > 1:
        splits.append((0, "ep", degree("ep")))
    if spec.tensor_dim is not None:
        axis = "etp" if domain == "expert" else "tp_head" if spec.kv_heads else "tp"
        if degree(axis) > 1:
            splits.append((spec.tensor_dim, axis, degree(axis)))
    return LocalParameter(spec, tuple(splits))
