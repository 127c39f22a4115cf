"""What a loss or metric function assigns to Keras variables while it is only tried out.

To find out what a function of the user's returns, it is traced once more than in one process, and every trace is part of the
step. A loss that keeps a moving average, or counts its calls, must not do so twice.
"""

from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import StatelessScope


class HeldUpdates(StatelessScope):  # type: ignore[misc]
    """A scope in which nothing is assigned to Keras variables; what follows in it reads what would be assigned."""

    def __init__(self) -> None:
        super().__init__()
        self._updates: dict[int, tuple[Any, Any]] = {}

    def add_update(self, update: tuple[Any, Any]) -> None:
        """See `keras.StatelessScope`, which calls it for each assignment with the variable and the value."""
        super().add_update(update)
        self._updates[id(update[0])] = update

    def assign(self) -> bool:
        """Assigns what was held. Call it after the scope.

        Returns:
            False, and assigns nothing, if something was assigned in a condition or a loop: what it computes stays there.
        """
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if any(tf.is_symbolic_tensor(value) and value.graph is not graph for _, value in self._updates.values()):
            return False
        for variable, value in self._updates.values():
            variable.assign(value)
        return True
