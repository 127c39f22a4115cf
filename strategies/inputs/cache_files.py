"""Cache files of datasets: each task has its own, and writes it anew if it was killed while it wrote it.

Under multi_worker_mirrored every task runs the whole program, also `dataset.cache("/tmp/images")`. Tasks that share a disk
would then write the same files, and tf.data lets one process write a cache: "There appears to be a concurrent caching iterator
running". So the tasks after the first, and the evaluator, add their names to those of the files.

TensorFlow knows who writes by a file `images_0.lockfile`, which is there until the first epoch has ended. A task that is killed
before leaves it, and would get that error whenever it is started again. It is removed where only processes that this one sees
can have made it: on a disk of this machine, and not in a container.
"""

import contextlib
import glob
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import patches

_UNFINISHED = re.compile(r"_\d+\.(lockfile|.*\.tempstate\d+)")
"""What the files of a cache that is being written have after its name."""

_ALL_PROCESSES = "pid:[4026531836]"
"""The namespace of processes of a machine (PROC_PID_INIT_INO in Linux' proc_ns.h). A container has another one."""

_task = ""
_log = logging.getLogger("tfdist")


def install(task: str) -> None:
    """Looks after the caches of datasets that are made from now on.

    Args:
        task: what is added to their names, such as `worker-1`; "" for nothing.
    """
    global _task
    _task = task
    patches.CACHE.patch(_cache)


def _cache(original: Callable[..., Any], dataset: Any, filename: Any = "", name: Any = None) -> Any:
    if isinstance(filename, tf.Tensor):
        return original(dataset, tf.strings.join([filename, _task], ".") if _task else filename, name)
    if filename:
        filename = os.fsdecode(filename) + (f".{_task}" if _task else "")
        with contextlib.suppress(OSError):  # Another process has removed them, or this one may not.
            _remove_unfinished(filename)
    return original(dataset, filename, name)


def _remove_unfinished(cache: str) -> None:
    """Removes what was written of a cache by a process of this user that has ended."""
    unfinished = [path for path in glob.glob(f"{glob.escape(cache)}_*") if _UNFINISHED.fullmatch(path.removeprefix(cache))]
    is_ours = bool(unfinished) and all(os.stat(path).st_uid == os.geteuid() for path in unfinished)
    if not is_ours or not _is_of_this_machine(unfinished[0]) or _are_open(unfinished):
        return
    for path in unfinished:
        os.remove(path)
    _log.warning("the cache %s was not complete when the process that wrote it has ended: it is written anew", cache)


def _is_of_this_machine(path: str) -> bool:
    """Returns whether only processes that this one sees can write a file."""
    # File systems that have no disk of their own, such as those of a network, have the major number 0.
    return os.major(os.stat(path).st_dev) != 0 and os.readlink("/proc/self/ns/pid") == _ALL_PROCESSES


def _are_open(paths: list[str]) -> bool:
    """Returns whether a process of this machine has one of these files open; True where that cannot be known."""
    wanted = {os.path.realpath(path) for path in paths}
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) in wanted:
                return True
    return not os.path.exists("/proc/self/fd")
