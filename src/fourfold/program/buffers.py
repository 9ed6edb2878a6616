"""Buffers of programs: one row a kind of buffer, and their names. U is a unit, S a segment, m a microbatch.

The core's stand here, a capability's in its own room; `capabilities.py` has all.
"""

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
    """The number of its elements, of a `FlatLayout`; None: its bytes are computed otherwise."""
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
    BufferInfo("batch", "/m", "tokens, targets, positions", "temporary", "tokens"),
    BufferInfo("rope", "", "rotary tables", "temporary", "rotary tables"),
    BufferInfo("router", "/S", "a router's balancing bias and load counts", "temporary", "routers"),
)
# fmt: on
CORE_BUFFERS = {row.kind: row for row in _ROWS}
"""Kinds that no capability owns. `host_` before a name: what it holds, in the host's memory."""


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


def batch(microbatch: int) -> str:
    return f"batch/m{microbatch}"


def values(flat: FlatLayout) -> str:
    """The buffer that the optimizer updates in the compute format."""
    return f"{'shard' if flat.zero == 3 else 'params'}/{flat.unit}"


def gradient(flat: FlatLayout) -> str:
    """The buffer that the unit's reduced gradient lies in."""
    return f"{'grad_shard' if flat.zero >= 2 else 'grad'}/{flat.unit}"
