"""Parameters as data: what a kind of layer declares once, and what layout, program, checkpoint and its own computation read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Generic, Literal, TypeVar

Domain = Literal["dense", "expert"]
T = TypeVar("T")


@dataclass(frozen=True)
class ParameterSpec:
    """One full parameter. `name` is its Hugging Face name; `init_std` None means ones (a norm's weight), 0.0 means zeros.

    Sharding rule: `tensor_dim` is the dim that tensor parallelism splits (`tp` for dense parameters, `etp` for experts'; None:
    replicated), `kv_heads` that its parts are key and value heads, which several ranks hold copies of where there are fewer heads
    than ranks. Dim 0 of an expert parameter is the experts, split over `ep`. `summed`: for a replicated parameter, when its
    gradient is a partial sum on every tensor-parallel rank: `always`, or under sequence parallelism alone (`sequence`).
    `head_rows`: rows of the matrices that each head of an up-projection from a latent has, which follow each other. `lr_scale`: its
    learning rate is `optimizer.lr` times this. `log_uniform`: initial values are the logarithms of numbers drawn evenly between
    these two, whatever `init_std` says; `softplus_log_uniform`: numbers whose softplus lies between these two, its logarithm drawn
    evenly.
    """

    name: str
    shape: tuple[int, ...]
    init_std: float | None
    weight_decay: bool
    tensor_dim: int | None
    kv_heads: bool = False
    summed: Literal["never", "sequence", "always"] = "never"
    head_rows: tuple[int, ...] = ()
    lr_scale: float = 1.0
    domain: Domain = "dense"
    log_uniform: tuple[float, float] | None = None
    softplus_log_uniform: tuple[float, float] | None = None

    @property
    def numel(self) -> int:
        return prod(self.shape)


Declared = ParameterSpec | tuple[ParameterSpec, ...]
"""A parameter; or several that stand next to each other and are used as one, stacked along dim 0 (q, k and v as one matrix)."""


@dataclass(frozen=True)
class Parameters(Generic[T]):
    """A record of the names by which code calls parameters: of what was declared (T is `Declared`), or of weights (`Weight`). A
    field is T, a record, a tuple of records, a mapping of T by name, or None where this one has none."""


@dataclass(frozen=True)
class Widths:
    """The sizes that parameters of every kind depend on: `hidden` elements of the residual stream; `std`, of initial values;
    `residual_std`, of those that write into the residual stream."""

    hidden: int
    std: float
    residual_std: float


def mapped(record: Any, change: Callable[[Declared], Any]) -> Any:
    """The record with what `change` makes of everything that it declares."""
    if record is None:
        return None
    if isinstance(record, ParameterSpec) or (
        isinstance(record, tuple) and record and isinstance(record[0], ParameterSpec)
    ):
        return change(record)
    if isinstance(record, tuple):
        return tuple(mapped(each, change) for each in record)
    if isinstance(record, dict):
        return {name: mapped(each, change) for name, each in record.items()}
    return type(record)(*(mapped(getattr(record, field.name), change) for field in fields(record)))


def declared_in(record: Any) -> Iterator[ParameterSpec]:
    """All parameters of a record, in the order of its fields."""
    if isinstance(record, ParameterSpec):
        yield record
    elif record is not None:
        values = record if isinstance(record, tuple) else record.values() if isinstance(record, dict) else None
        for each in values if values is not None else (getattr(record, field.name) for field in fields(record)):
            yield from declared_in(each)


def column(name: str, rows: int, columns: int, std: float, **rule: Any) -> ParameterSpec:
    """A matrix [rows, columns] whose rows tensor parallelism splits."""
    return ParameterSpec(name, (rows, columns), std, True, 0, **rule)


def row(name: str, rows: int, columns: int, std: float) -> ParameterSpec:
    """A matrix [rows, columns] whose columns tensor parallelism splits."""
    return ParameterSpec(name, (rows, columns), std, True, 1)


def replicated(name: str, shape: tuple[int, ...], std: float, summed: Literal["sequence", "always"]) -> ParameterSpec:
    """A matrix that every tensor-parallel rank holds."""
    return ParameterSpec(name, shape, std, True, None, summed=summed)


def gain(name: str, width: int, summed: Literal["sequence", "always"] = "sequence") -> ParameterSpec:
    """A norm's weight, ones at the start."""
    return ParameterSpec(name, (width,), None, False, None, summed=summed)


def bias(name: str, width: int) -> ParameterSpec:
    """A bias that every tensor-parallel rank holds: of a norm, or of a projection into the residual stream."""
    return ParameterSpec(name, (width,), 0.0, False, None, summed="sequence")


def split_bias(name: str, width: int, kv_heads: bool = False) -> ParameterSpec:
    """A bias of rows that tensor parallelism splits."""
    return ParameterSpec(name, (width,), 0.0, False, 0, kv_heads=kv_heads)
