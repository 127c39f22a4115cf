"""Keeps the memory that one step frees for the next step.

TensorFlow allocates and frees a tensor for every parameter and gradient that travels, with the C library's `malloc`. glibc
returns large blocks to the kernel when they are freed, and the next step gets them back page fault by page fault. With
parameters of some megabytes a ps spent a quarter of its time on these faults.
"""

import ctypes
import os

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of `mallopt(3)`, from glibc's <malloc.h>."""

MMAP_THRESHOLD_BYTES = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)
"""Freed blocks below this size are kept: 32 MiB, the limit of mallopt(3). glibc maps a larger block at each allocation."""

TRIM_THRESHOLD_BYTES = (1 << 31) - 1
"""Free memory at the end of the heap that is kept: the largest `int`, the type that `mallopt` takes."""

USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables that set the same parameters (mallopt(3); glibc manual, "Memory Allocation Tunables"): they win."""


def keep_freed_memory() -> None:
    """Makes this process keep freed memory, so that it stays at its largest size. Does nothing with other C libraries."""
    if any(name in os.environ for name in USERS_OWN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
