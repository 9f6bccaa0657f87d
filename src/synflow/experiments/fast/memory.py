"""Keep freed memory in the process, so that a training step does not fault in its activations again."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# The names of glibc's `mallopt` for the size from which a block is mapped on its own, and for the free space at the
# end of the heap from which it is returned to the system.
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
# Blocks below this size stay in the heap; the largest value that glibc takes for 64-bit systems is 2^31 - 1.
LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory for the rest of this process; False where it is not glibc.

    By default glibc returns the activations of a step to the system and the next step faults them in again, page by
    page: a third of the processor time of a step of compact VGG-11. The process keeps its peak memory instead.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has no mallopt
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))
