"""What a segment's own collectives move, declared without torch."""

from dataclasses import dataclass
from typing import Literal

CollectiveKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "shift", "send", "recv"]


@dataclass(frozen=True)
class Traffic:
    """One collective inside a segment. `axes`: the group's name (`tp`, `cp_ring`, `ep`); `bytes`: the whole buffer's size, what
    all_gather produces, what reduce_scatter, all_reduce and all_to_all consume, what a shift sends."""

    kind: CollectiveKind
    axes: str
    bytes: int
