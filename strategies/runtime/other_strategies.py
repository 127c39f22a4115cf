"""Other strategies of TensorFlow in a program that trains on a cluster: an error in place of a crash or an endless wait.

A program that gets `tfdist.strategy()` may still make the `tf.distribute.MirroredStrategy()` that it had before. In a process
that is connected to a cluster, that takes the devices of all tasks, or TensorFlow's collectives, which are tfdist's: TensorFlow
crashes (SIGSEGV), or waits for tasks that never answer.
"""

import gc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import patches

_CONNECTED = {
    "MultiWorkerMirroredStrategy": tf.distribute.MultiWorkerMirroredStrategy,
    "ParameterServerStrategy": tf.distribute.ParameterServerStrategy,
}
"""Those that start a server at the address of the task, or connect to other tasks, for as long as the process lives."""

_REFUSED = {
    **_CONNECTED,
    "MirroredStrategy": tf.distribute.MirroredStrategy,
    "CentralStorageStrategy": tf.distribute.experimental.CentralStorageStrategy,
}
"""By the names that programs write; the classes have others."""


def refuse_earlier() -> None:
    """Raises if the program has made a strategy of TensorFlow's that takes the address or the connections of this task.

    Raises:
        ValueError: it has; the message names it.
    """
    for kind in {type(each) for each in gc.get_objects()}:
        if name := _name_of_others(kind, _CONNECTED):
            raise ValueError(
                f"this process has made a {name} of TensorFlow's before tfdist.strategy(), which needs the address and the "
                "connections that TensorFlow took for it; use the strategy that tfdist.strategy() returns in its place"
            )


def _name_of_others(kind: type, others: dict[str, type]) -> str | None:
    """Returns the name of the strategy among `others` that `kind` is, unless it is one of tfdist's."""
    name = next((name for name, each in others.items() if issubclass(kind, each)), None)
    return None if name and kind.__module__.startswith("tfdist.") else name


def refuse() -> None:
    """Makes the constructors of TensorFlow's strategies raise ValueError from now on, but for subclasses that are tfdist's."""
    patches.STRATEGY_EXTENDED.patch(_init)


def _init(original: Callable[..., None], extended: Any, container_strategy: Any) -> None:
    if name := _name_of_others(type(container_strategy), _REFUSED):
        raise ValueError(
            f"this process trains on a cluster, of which {name} knows nothing; in its place use the strategy that "
            "tfdist.strategy() returns"
        )
    original(extended, container_strategy)
