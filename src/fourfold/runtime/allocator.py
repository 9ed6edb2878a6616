"""Settings of the libraries below a rank's process before their first use: of the C library's allocator, since a step frees and
allocates the same large buffers again and again; and by variables, of CUDA, NCCL and PyTorch's allocator on a device.

Variables are read once, from the environment alone: no call sets them later. Launchers give them to what becomes a rank; whatever a
person has set stays as it is.
"""

import ctypes
import sys
from collections.abc import Mapping

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1
_VARIABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    # A rank has a computing stream, two of copies, and one for every communicator: 12 to 14 of them, which the default of 8
    # hardware queues makes wait for each other where they share one (CUDA programming guide, environment variables; at most 32).
    "CUDA_DEVICE_MAX_CONNECTIONS": ("32", ()),
    # A collective's few blocks are scheduled before those of a matmul that waits for them, or that it runs beside.
    "TORCH_NCCL_HIGH_PRIORITY": ("1", ()),
    # Segments that grow instead of new ones beside them: less memory is cut up where sizes differ from step to step (PyTorch,
    # CUDA semantics). The second name is the newer one of the same variable.
    "PYTORCH_CUDA_ALLOC_CONF": ("expandable_segments:True", ("PYTORCH_ALLOC_CONF",)),
}
"""By name: the value, and other names under which a person may have set it."""


def keep_freed_memory() -> bool:
    """Stops glibc from handing freed buffers back to the kernel, which would fault in every page of the next one again (some
    0.2 ms a MB). The process then stays at its peak size. Returns False where there is no glibc to tell."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _NEVER))


def device_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are missing in an environment. A variable that is set, if only to nothing, is its owner's."""
    return {
        name: value
        for name, (value, others) in _VARIABLES.items()
        if not any(each in environment for each in (name, *others))
    }


def for_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment, with those that were missing."""
    return {**device_environment(environment), **environment}
