"""Refuses calls of Keras' trainer that two threads make at a time.

Steps that are in flight belong to one call: those of two would mix, as would their metrics, and the collectives of two models.
"""

import threading
from collections.abc import Callable
from typing import Any

from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.private_api import patches

_lock = threading.Lock()
_running: list[str] = []  # Calls of `_thread` that have not returned, such as "fit of digits", the innermost last.
_thread: threading.Thread | None = None


def install() -> None:
    """Refuses them from now on. Calling it again does nothing."""
    patches.FIT.patch(_call)
    patches.EVALUATE.patch(_call)
    patches.PREDICT.patch(_call)
    patches.TRAIN_ON_BATCH.patch(_call)
    patches.TEST_ON_BATCH.patch(_call)
    patches.PREDICT_ON_BATCH.patch(_call)


def _begin(call: str) -> None:
    global _thread
    current = threading.current_thread()
    with _lock:
        if _running and _thread is not None and _thread is not current:
            raise RuntimeError(
                f"{call} is called in the thread {current.name} while {_running[0]} runs in {_thread.name}: on several "
                "replicas or tasks one thread at a time may train, evaluate or predict. Hold a threading.Lock around these "
                "calls, or make them in a callback of fit"
            )
        _thread = current
        _running.append(call)


def _end() -> None:
    with _lock:
        _running.pop()


# The replacement. The first parameter is the function that it replaces.


def _call(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if hooks_of(model.distribute_strategy) is None:
        return original(model, *args, **kwargs)
    _begin(f"{original.__name__} of {model.name}")
    try:
        return original(model, *args, **kwargs)
    finally:
        _end()
