"""Makes the C library's allocator keep freed memory: a step frees and allocates the same large buffers again and again."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


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
