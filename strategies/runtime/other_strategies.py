"""Other strategies of TensorFlow in a program that trains on a cluster: an error in place of a crash or an endless wait.

A program that gets `tfdist.strategy()` may still make the `tf.distribute.MirroredStrategy()` that it had before. In a process
that is connected to a cluster, that takes the devices of all tasks, or TensorFlow's collectives, which are tfdist's: TensorFlow
crashes (SIGSEGV), or waits for tasks that never answer.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import patches

_REFUSED = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.ParameterServerStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
)


def refuse() -> None:
    """Makes the constructors of TensorFlow's strategies raise ValueError from now on, but for subclasses that are tfdist's."""
    patches.STRATEGY_EXTENDED.patch(_init)


def _init(original: Callable[..., None], extended: Any, container_strategy: Any) -> None:
    kind = type(container_strategy)
    if isinstance(container_strategy, _REFUSED) and not kind.__module__.startswith("tfdist."):
        raise ValueError(
            f"this process trains on a cluster, of which {kind.__name__} knows nothing; in its place use the strategy that "
            "tfdist.strategy() returns"
        )
    original(extended, container_strategy)
