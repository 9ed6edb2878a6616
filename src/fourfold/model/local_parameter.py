"""One rank's part of a parameter: which dims are split, over which axes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from fourfold.model.spec import Domain, ParameterSpec


@dataclass(frozen=True)
class LocalParameter:
    """The full parameter, or an even part along some dims.

    `splits`: (dim, axis, degree) of every dim that is split; the rank's coordinate on the axis says which part it has. A vocabulary
    that does not divide is padded: `shape` is the same on every rank, `box` leaves the padding out, which is zero and stays zero.
    """

    spec: ParameterSpec
    splits: tuple[tuple[int, str, int], ...] = ()

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def shape(self) -> tuple[int, ...]:
        sizes = list(self.spec.shape)
        for dim, _, degree in self.splits:
            sizes[dim] = part_size(sizes[dim], degree) or 0
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
        sizes = zip(starts, self.shape, self.spec.shape, strict=True)
        return tuple((start, min(start + size, full)) for start, size, full in sizes)


def part_size(size: int, degree: int) -> int | None:
    """Rows of `size` that each of `degree` ranks has, padding included: an even part, else a multiple of 128 where every rank has
    a row of its own then, as Megatron-LM pads a vocabulary, else of a smaller power of two. None: some rank would have none."""
    if size % degree == 0:
        return size // degree
    multiples = (2**power for power in range(7, -1, -1))
    parts = (-(-size // (degree * multiple)) * multiple for multiple in multiples)
    return next((part for part in parts if (degree - 1) * part < size), None)


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
