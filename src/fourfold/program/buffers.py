"""Names of a program's buffers. U is a unit, S a segment, m a microbatch.

params/U      unit U's full parameters in the compute format           hidden/S/m   input of segment S for microbatch m
shard/U       this rank's shard of them (ZeRO-3)                       dhidden/S/m  the gradient of that input
master/U      the shard in the master format, where formats differ     saved/S/m    what S's backward needs beside its input
optimizer/U   optimizer states of the shard                            deferred/S/m operands of S's deferred weight gradients
grad/U        full gradients of the unit                               batch/m      tokens, targets, positions
grad_shard/U  reduced gradients of the shard (ZeRO-2, 3)               reduce/U     staging buffer of a reduction
direction/U   the shard's part of Muon's directions                    matrices/U   those of all ranks with parts of a matrix
home/U        this rank's results for the matrices whose home it is    homes/U      those of all homes
dispatched/S/m, combined/S/m    a forward of S in parts, with rows for the experts, and with their outputs
ddispatched/S/m, dcombined/S/m  a backward of S in parts, likewise
host_saved/S/m, host_optimizer/U, host_master/U     the same as those without `host_`, in the host's memory
rope          rotary tables                                            router/S     a router's balancing bias and load counts
"""

from fourfold.layout import FlatLayout


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
