"""`keras.callbacks.OrbaxCheckpoint` under multi_worker_mirrored: the chief alone writes, and all tasks read the weights."""

from collections.abc import Iterable
from typing import Any

import keras

from tfdist.strategies.checkpoint import save_order

_Callback: Any = getattr(keras.callbacks, "OrbaxCheckpoint", None)  # Older versions of Keras have none.


def leave_to_chief(callbacks: Iterable[Any], is_chief: bool) -> None:
    """Makes each `OrbaxCheckpoint` among the callbacks write on the chief alone; elsewhere `fit` ends after the chief's."""
    for callback in callbacks:
        if _Callback is not None and isinstance(callback, _Callback) and not isinstance(callback.checkpointer, _OfChief):
            callback.checkpointer = (_OfChief if is_chief else _OfAnother)(callback.checkpointer, callback.directory)


class _OfChief:
    """In place of Orbax' checkpointer on the chief."""

    def __init__(self, checkpointer: Any, directory: Any) -> None:
        self._checkpointer, self._directory = checkpointer, directory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpointer, name)

    def close(self) -> None:
        """Closes Orbax' checkpointer, which waits for what it writes. Tasks that are not the chief wait for the chief's."""
        with save_order.after_chief(self._directory):
            self._checkpointer.close()


class _OfAnother(_OfChief):
    """The same on another task, which writes nothing. The callback has read the weights before, which is collective."""

    def save_checkpointables(self, *args: Any, **kwargs: Any) -> bool:
        """Does nothing."""
        return True

    def save_checkpointables_async(self, *args: Any, **kwargs: Any) -> "_OfAnother":
        """Does nothing. Returns what stands for the result to come."""
        return self

    def result(self, timeout: float | None = None) -> bool:
        """Returns at once."""
        return True
