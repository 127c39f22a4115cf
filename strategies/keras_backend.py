"""Keras' backend: every strategy but the default one trains Keras on TensorFlow.

With another backend Keras never asks the strategy, so each task would train a model of its own, on the data of all.
Importing this module imports neither Keras nor TensorFlow.
"""

import os
import sys
from typing import Any

from tfdist.errors import UnsupportedVersionError


def refusal(strategy: str, named: str | None = None) -> str | None:
    """Returns why programs of this environment cannot train under a strategy, as a sentence; None if they can.

    Args:
        strategy: name of the strategy, or `evaluator`.
        named: the backend that tasks get in KERAS_BACKEND; by default that of Keras, if it is imported, or of this variable.
    """
    keras: Any = sys.modules.get("keras")
    backend = keras.config.backend() if hasattr(keras, "config") else os.environ.get("KERAS_BACKEND")
    backend = named or backend or "tensorflow"
    if strategy == "default" or backend == "tensorflow":
        return None
    return (
        f"Keras uses its backend {backend} (KERAS_BACKEND, or keras.json), which does not ask {strategy}: every task would "
        "train a model of its own; set KERAS_BACKEND to tensorflow"
    )


def check(strategy: str) -> None:
    """Checks the backend of Keras.

    Raises:
        UnsupportedVersionError: if models cannot train on it under this strategy.
    """
    if (reason := refusal(strategy)) is not None:
        raise UnsupportedVersionError(reason)
