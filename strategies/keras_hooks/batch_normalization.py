"""BatchNormalization on replicas: each normalizes its own shard, as under Keras, and a warning says so."""

import logging
from typing import Any

import keras

_log = logging.getLogger("tfdist")
_warned: set[str] = set()


class Frozen:
    """Lets layers that normalize over the batch use their moving statistics: `warn_of_normalization` names these layers."""

    def __init__(self, model: Any) -> None:
        self._layers = [layer for layer in _normalizations(model) if layer.trainable]

    def __enter__(self) -> None:
        for layer in self._layers:
            layer.trainable = False

    def __exit__(self, *_: Any) -> None:
        for layer in self._layers:
            layer.trainable = True


def warn_of_normalization(model: Any, replicas: int) -> None:
    """Logs a warning, once for each model, that names its layers that normalize over the shard of a replica.

    Args:
        model: the Keras model.
        replicas: how many replicas share a batch.
    """
    layers = [layer.name for layer in _normalizations(model) if layer.trainable and not layer.synchronized]
    if layers and model.name not in _warned:
        _warned.add(model.name)
        shown = ", ".join(layers[:3]) + (f" and {len(layers) - 3} more layers" if len(layers) > 3 else "")
        _log.warning(
            "the training of %s differs from that in one process, because %d replicas share each batch: BatchNormalization "
            "(%s) normalizes each replica's part. BatchNormalization(synchronized=True) normalizes the whole batch",
            *(model.name, replicas, shown),
        )


def _normalizations(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
