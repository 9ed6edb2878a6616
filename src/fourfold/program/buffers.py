"""Buffers of programs: one row a kind of buffer, and their names. U is a unit, S a segment, m a microbatch."""

from dataclasses import dataclass
from typing import Literal

from fourfold.layout import FlatLayout

Memory = Literal["parameters", "gradients", "optimizer", "activations", "temporary"]


@dataclass(frozen=True)
class BufferInfo:
    """A row of the table. A buffer's name is its kind and what it is of: `params/b3`, `saved/b3/m0`, `batch/m0`, `rope`."""

    kind: str
    """The first part of the name."""
    of: Literal["", "/U", "/S", "/S/m", "/m"]
    """The rest of the name: a unit, a segment, with or without a microbatch, or nothing."""
    holds: str
    """The content."""
    memory: Memory
    """The part of memory that it is counted and coloured with."""
    label: str | None = None
    """A few words for people who read tables of memory; None: its kind."""
    numel: Literal["padded_numel", "shard_numel"] | None = None
    """The number of its elements, of a `FlatLayout`; None: `sizes.py` computes its bytes otherwise."""
    format: Literal["compute", "master", "gradients"] | None = None
    """The number format, of a `StepSpec`, likewise."""


# fmt: off
_ROWS = (
    BufferInfo("params", "/U", "a unit's full parameters in the compute format", "parameters", "parameters",
        "padded_numel", "compute"),
    BufferInfo("shard", "/U", "this rank's shard of them (ZeRO-3)", "parameters", "parameters (shards)",
        "shard_numel", "compute"),
    BufferInfo("grad", "/U", "full gradients of the unit", "gradients", "gradients", "padded_numel", "gradients"),
    BufferInfo("grad_shard", "/U", "reduced gradients of the shard (ZeRO-2, 3)", "gradients", "gradients (shards)",
        "shard_numel", "gradients"),
    BufferInfo("reduce", "/U", "staging buffer of a reduction", "gradients", "staging buffers of reductions"),
    BufferInfo("optimizer", "/U", "optimizer states of the shard", "optimizer", "optimizer states"),
    BufferInfo("master", "/U", "the shard in the master format, where formats differ", "optimizer", "master weights",
        "shard_numel", "master"),
    BufferInfo("saved", "/S/m", "what a segment's backward needs beside its input", "activations", "activations"),
    BufferInfo("hidden", "/S/m", "input of a segment for a microbatch", "activations", "hidden states"),
    BufferInfo("dhidden", "/S/m", "the gradient of that input", "activations", "gradients of hidden states"),
    BufferInfo("deferred", "/S/m", "operands of a segment's deferred weight gradients", "activations", "deferred wgrads"),
    BufferInfo("dispatched", "/S/m", "a forward in parts, with rows for the experts", "activations"),
    BufferInfo("combined", "/S/m", "a forward in parts, with the experts' outputs", "activations"),
    BufferInfo("ddispatched", "/S/m", "a backward in parts, with rows for the experts", "activations"),
    BufferInfo("dcombined", "/S/m", "a backward in parts, with the experts' gradients", "activations"),
    BufferInfo("batch", "/m", "tokens, targets, positions", "temporary", "tokens"),
    BufferInfo("rope", "", "rotary tables", "temporary", "rotary tables"),
    BufferInfo("router", "/S", "a router's balancing bias and load counts", "temporary", "routers"),
    BufferInfo("direction", "/U", "the shard's part of Muon's directions", "temporary", "directions (Muon)",
        "shard_numel", "compute"),
    BufferInfo("matrices", "/U", "those of all ranks with parts of a matrix", "temporary", "gathered directions (Muon)"),
    BufferInfo("home", "/U", "this rank's results for the matrices whose home it is", "temporary", "orthogonal matrices"),
    BufferInfo("homes", "/U", "those of all homes", "temporary", "gathered orthogonal matrices"),
)
# fmt: on
BUFFERS = {row.kind: row for row in _ROWS}
"""By kind. `host_` before a name: what it holds, in the host's memory."""


def mark(microbatch: int) -> str:
    """The end of the names of a microbatch's own buffers."""
    return f"/m{microbatch}"


_HOST = "host_"


def on_host(buffer: str) -> bool:
    """Whether a buffer lies in the host's memory."""
    return buffer.startswith(_HOST)


def host(buffer: str) -> str:
    """Where a buffer of the device lies in the host's memory while it is offloaded."""
    return _HOST + buffer


def device(buffer: str) -> str:
    """The buffer of the device that lies there."""
    return buffer.removeprefix(_HOST)


def hidden(segment: str, microbatch: int) -> str:
    return f"hidden/{segment}/m{microbatch}"


def dhidden(segment: str, microbatch: int) -> str:
    return f"dhidden/{segment}/m{microbatch}"


def saved(segment: str, microbatch: int) -> str:
    return f"saved/{segment}/m{microbatch}"


def deferred(segment: str, microbatch: int) -> str:
    return f"deferred/{segment}/m{microbatch}"


def dispatched(segment: str, microbatch: int, gradient: bool = False) -> str:
    return f"{'d' if gradient else ''}dispatched/{segment}/m{microbatch}"


def combined(segment: str, microbatch: int, gradient: bool = False) -> str:
    return f"{'d' if gradient else ''}combined/{segment}/m{microbatch}"


def batch(microbatch: int) -> str:
    return f"batch/m{microbatch}"


def values(flat: FlatLayout) -> str:
    """The buffer that the optimizer updates in the compute format."""
    return f"{'shard' if flat.zero == 3 else 'params'}/{flat.unit}"


def direction(flat: FlatLayout) -> str:
    """The buffer that MOMENTUM writes."""
    return f"direction/{flat.unit}"


def matrices(flat: FlatLayout, brought: bool) -> str:
    """The buffer of the full directions that are orthogonalized: gathered, or there already."""
    return f"matrices/{flat.unit}" if brought else direction(flat)


def home(flat: FlatLayout) -> str:
    """The buffer that ORTHOGONALIZE writes."""
    return f"home/{flat.unit}"


FULL_MATRICES = ("direction", "matrices", "homes")
"""Kinds of what an update reads of matrices beside gradient and state."""


def homes(flat: FlatLayout) -> str:
    """The buffer of the results of all homes."""
    return f"homes/{flat.unit}"


def gradient(flat: FlatLayout) -> str:
    """The buffer that the unit's reduced gradient lies in."""
    return f"{'grad_shard' if flat.zero >= 2 else 'grad'}/{flat.unit}"
