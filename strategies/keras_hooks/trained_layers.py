"""Which layers a step trains, for as long as the model is not compiled anew.

In one process `fit` traces its step once for batches of one form, so a change of `trainable` counts from the next `compile` on.
Here a step is also traced for batches that are smaller than the number of replicas, and under hogwild for calls of other
numbers of steps. Each such function trains what the first one did.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning

_log = logging.getLogger("tfdist")


class TrainedLayers:
    """Keeps `trainable` of the layers and variables of a model as it was when its step was traced first."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._first: Sequence[tuple[Any, bool]] = ()

    @contextlib.contextmanager
    def as_at_first(self) -> Iterator[None]:
        """Within this context `trainable` is as it was when the context was first left without an exception."""
        changed = [(each, each.trainable) for each, trainable in self._first if each.trainable != trainable]
        if changed and is_first_warning(self._model, "trained layers"):
            _log.warning(
                "`trainable` of layers of %s has changed since its first step, without compile: that has no effect before the "
                "next compile; call compile after the change",
                self._model.name,
            )
        _set(self._first)
        try:
            yield
        finally:
            _set(changed)
        self._first = self._first or [
            (each, each.trainable) for each in (*self._model._flatten_layers(), *self._model.variables)
        ]


def _set(trainable: Sequence[tuple[Any, bool]]) -> None:
    for layer, value in trainable:
        layer._trainable = value  # The setter of a layer would also set that of all that is in it.
