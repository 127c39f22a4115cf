"""The next step reuses the memory that a step frees, instead of getting it from the kernel page by page."""

import ctypes
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="a C library without mallopt")

BLOCKS = 10 * 3
"""Blocks of 4 MiB that ten steps allocate: 30720 page faults if all come from the kernel in pages of 4 KiB, at least 1 each."""

STEPS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
from tfdist.strategies.runtime.memory import keep_freed_memory
keep_freed_memory()

def step():
    blocks = [libc.malloc(4 << 20) for _ in range(3)]
    for block in blocks:
        ctypes.memset(block, 1, 4 << 20)
    for block in blocks:
        libc.free(block)

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_of_ten_steps(monkeypatch, **environment):
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", STEPS], check=True, timeout=60, capture_output=True, text=True)
    return int(done.stdout)


def test_freed_memory_is_used_again_without_page_faults(monkeypatch):
    assert faults_of_ten_steps(monkeypatch) < BLOCKS


def test_a_choice_of_the_user_stays(monkeypatch):
    assert faults_of_ten_steps(monkeypatch, MALLOC_MMAP_THRESHOLD_="65536") >= BLOCKS
