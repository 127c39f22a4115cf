"""Cache files of datasets: each task has its own.

Under multi_worker_mirrored every task runs the whole program, also `dataset.cache("/tmp/images")`. Tasks that share a disk
would then write the same files, and tf.data lets one process write a cache: "There appears to be a concurrent caching iterator
running". So the tasks after the first, and the evaluator, add their names to those of the files.
"""

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import patches

_task = ""


def install(task: str) -> None:
    """Gives the caches of datasets that are made from now on names of their own.

    Args:
        task: what is added to a name, such as `worker-1`.
    """
    global _task
    _task = task
    patches.CACHE.patch(_cache)


def _cache(original: Callable[..., Any], dataset: Any, filename: Any = "", name: Any = None) -> Any:
    is_tensor = isinstance(filename, tf.Tensor)
    if not _task or (not is_tensor and not filename):
        return original(dataset, filename, name)
    own = tf.strings.join([filename, _task], ".") if is_tensor else f"{os.fsdecode(filename)}.{_task}"
    return original(dataset, own, name)
