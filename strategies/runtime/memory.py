"""Keeps the memory that one step frees for the next step.

TensorFlow allocates and frees a tensor for every parameter and gradient that travels, with the C library's `malloc`. That of
glibc gives large blocks back to the kernel when they are freed, and takes them anew, page fault by page fault, in the next
step. For parameters of some megabytes a ps spent a quarter of its time so.
"""

import ctypes
import os

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of `mallopt(3)`, from glibc's <malloc.h>."""

MMAP_THRESHOLD_BYTES = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)
"""Blocks below this size are kept: 32 MiB, the most that mallopt(3) allows. glibc maps larger ones anew each time."""

TRIM_THRESHOLD_BYTES = (1 << 31) - 1
"""So much may be free at the end of the heap: the largest `int`, which is what `mallopt` takes."""

USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which a user has chosen otherwise (mallopt(3), glibc manual, "Memory Allocation Tunables")."""


def keep_freed_memory() -> None:
    """Lets this process keep freed memory: it stays as large as it has been at most. Other C libraries stay as they are."""
    if any(name in os.environ for name in USERS_OWN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
