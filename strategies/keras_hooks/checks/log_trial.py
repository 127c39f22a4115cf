"""Numbers that a step returns as logs beside its metrics: whether replicas, each with its shard, return those of one process.

The mean over the replicas counts, each with its share of the examples. Of a sum over the examples that is too little. A trial
(shard_check.py) finds such sums: they are twice as large with each example twice. From then on they count in full. What
compares the examples, as a maximum or the norm of gradients, is that of a shard, and a warning names it.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks.growth import is_of_sum
from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning
from tfdist.strategies.keras_hooks.step_logs import flat

_MOST_BYTES = 4096
"""Of the names of all sums, which tasks send."""

_ATTRIBUTE = "_tfdist_sum_logs"

_log = logging.getLogger("tfdist")


def numbers(logs: Any) -> dict[str, Any]:
    """Returns the logs of a step that is traced that are one number, by name."""
    graph = tf.compat.v1.get_default_graph()
    found = flat(logs) if isinstance(logs, dict) else {}
    traced = {name: log for name, log in found.items() if tf.is_symbolic_tensor(log) and log.graph is graph}
    return {
        name: log for name, log in traced.items() if log.shape.rank == 0 and (log.dtype.is_floating or log.dtype.is_integer)
    }


def sums_among(names: Sequence[str], growth: Sequence[float | None], compares: Sequence[bool]) -> set[str]:
    """Returns the names of the logs that are sums over the examples.

    Args:
        names: of the logs.
        growth: how many times as large each is with each example twice; None if that is not known.
        compares: for each, whether it depends on which examples are together in a batch.
    """
    found = zip(names, growth, compares, strict=True)
    return {name for name, times, depends in found if is_of_sum(times) and not depends}


def warn(model: Any, names: Collection[str], replicas: int) -> None:
    """Logs a warning, once for each model, of logs with these names, which depend on which examples are in a batch."""
    if names and is_first_warning(model, "logs"):
        _log.warning(
            "logs of %s (%s) differ from those in one process, because %d replicas share each batch: %s depends on which "
            "examples are together in a batch, as a maximum or a norm does, and the mean over the replicas counts",
            *(model.name, type(model).__name__, replicas, ", ".join(names)),
        )


def agreed(names: Collection[str], of_chief: Callable[[Any], Any]) -> frozenset[str]:
    """Returns the names that the first task has found, given those that this task has. All tasks have to call it."""
    text = "\n".join(sorted(names)).encode()[:_MOST_BYTES]
    sent = of_chief(np.frombuffer(text.ljust(_MOST_BYTES, b"\0"), np.uint8))
    return frozenset(bytes(sent.astype(np.uint8)).rstrip(b"\0").decode(errors="ignore").split("\n")) - {""}


def count_in_full(model: Any, trains: bool, names: Collection[str]) -> None:
    """Lets logs of the `train_step` of a model, or of its `test_step`, count in full from now on, given their names."""
    vars(model).setdefault(_ATTRIBUTE, {})[trains] = names  # Keras would track an attribute that is assigned.


def in_full(logs: Any, model: Any, trains: bool, share: Any) -> Any:
    """Returns the logs of a replica; sums over its examples divided by its share, so that the mean of the replicas' is the sum.

    Args:
        logs: what its step returned.
        model: the Keras model.
        trains: whether that is its `train_step`.
        share: its part of the examples, a scalar; None if it is alone.
    """
    names = vars(model).get(_ATTRIBUTE, {}).get(trains, ())
    if not names or share is None or not isinstance(logs, dict):
        return logs

    def of(name: str, log: Any) -> Any:
        if isinstance(log, dict):
            return {inner: of(inner, value) for inner, value in log.items()}
        return tf.math.divide_no_nan(tf.cast(log, tf.float64), tf.cast(share, tf.float64)) if name in names else log

    return {name: of(name, log) for name, log in logs.items()}
