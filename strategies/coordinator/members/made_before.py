"""What a program has made before `tfdist.strategy`: datasets, variables and tables that it cannot use any more.

When TensorFlow connects to a cluster, it makes the devices of this process anew. What the old ones held is gone: operations on
it fail with messages about a device `/job:localhost`, also on workers, where they look like the loss of the worker. Arrays of
numpy and plain tensors stay.
"""

import gc
import logging
from collections import Counter
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import ResourceVariable

LOST_DEVICE = "/job:localhost/"
"""In the names of the devices of a process that is not connected to a cluster."""

HOW = (
    "is gone, because TensorFlow makes the devices of this process anew when it connects to the cluster; call "
    "tfdist.strategy() first (arrays of numpy may be made before it)"
)

_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("dataset", (tf.data.Dataset,)),
    ("variable", (ResourceVariable,)),
    ("table", (tf.lookup.StaticHashTable, tf.lookup.experimental.MutableHashTable)),
)

_log = logging.getLogger("tfdist")


def warn_of_lost() -> None:
    """Logs a warning that counts the datasets, variables and tables that are lost when this process connects to the cluster."""
    kinds: dict[type, str] = {}  # `isinstance` for each object takes seconds.
    lost: Counter[str] = Counter()
    for value in gc.get_objects():
        own = type(value)
        if own not in kinds:
            kinds[own] = next((kind for kind, types in _KINDS if issubclass(own, types)), "")
        if kinds[own] and is_lost(value):
            lost[kinds[own]] += 1
    if lost:
        counts = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in lost.items()]
        _log.warning("what the program has made before tfdist.strategy() (%s) %s", ", ".join(counts), HOW)


def is_lost(value: Any) -> bool:
    """Returns whether a dataset, variable or table is on a device of a process that is not connected to a cluster."""
    try:
        if isinstance(value, tf.data.Dataset):
            value = tf.data.experimental.to_variant(value)
        return LOST_DEVICE in str(getattr(value, "resource_handle", value).device)
    except Exception:
        return False  # It is not made yet, or part of a function.


def check_data(data: Any) -> None:
    """Raises ValueError for a dataset that is lost."""
    if isinstance(data, tf.data.Dataset) and is_lost(data):
        raise ValueError(f"this dataset was made before tfdist.strategy() and {HOW}")


def check_error(error: Exception) -> None:
    """Raises ValueError if a call has failed because of anything that is lost. TensorFlow takes it for the loss of a worker."""
    if LOST_DEVICE in str(error) and "unknown device" in str(error):
        raise ValueError(
            f"a step uses a variable, table or other object that was made before tfdist.strategy() and {HOW}"
        ) from error
