"""Keras' calls of the trainer: which one is running, that one thread at a time makes them, and that an exception has left one.

Steps that are in flight belong to one call: those of two threads would mix, as would their metrics, and the collectives of two
models.
"""

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from tfdist.strategies.keras_hooks.callbacks import listed
from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.private_api import patches


@dataclass(eq=False)
class Call:
    """A call of Keras' trainer: `fit`, `evaluate`, `predict` or `test_on_batch`.

    Attributes:
        name: of the method.
        epochs: those of a `fit`, such as "0 to 10"; "" for other methods.
        backups: how many `BackupAndRestore` a `fit` has; None for other methods.
        rounds: how many epochs the next iterator of Keras reads on through: all of a `fit`, one for its validation data.
    """

    name: str
    epochs: str = ""
    backups: int | None = None
    rounds: int = 1


_running: list[Call] = []
_lock = threading.Lock()
_of_replicas: list[str] = []  # Calls of `_thread` that have not returned, such as "fit of digits", the innermost last.
_thread: threading.Thread | None = None


def install() -> None:
    """Notes calls from now on. Calling it again does nothing."""
    for point in (patches.FIT, patches.EVALUATE, patches.PREDICT, patches.TEST_ON_BATCH):
        point.patch(_noted)
        point.patch(_call)
    patches.TRAIN_ON_BATCH.patch(_call)
    patches.PREDICT_ON_BATCH.patch(_call)


def running() -> Call | None:
    """Returns the innermost call of the program that has not returned; None if there is none."""
    return _running[-1] if _running else None


def is_over(call: Call) -> bool:
    """Returns whether a call that `running` has returned has ended since, by itself or by an exception."""
    return not any(each is call for each in _running)


def is_in_this_thread() -> bool:
    """Returns whether this thread makes the call of Keras' trainer that runs."""
    return bool(_of_replicas) and _thread is threading.current_thread()


def _during(call: Call, function: Callable[[], Any]) -> Any:
    _running.append(call)
    try:
        return function()
    finally:
        _running.pop()


def _begin(call: str) -> None:
    global _thread
    current = threading.current_thread()
    with _lock:
        if _of_replicas and _thread is not None and _thread is not current:
            raise RuntimeError(
                f"{call} is called in the thread {current.name} while {_of_replicas[0]} runs in {_thread.name}: on several "
                "replicas or tasks one thread at a time may train, evaluate or predict. Hold a threading.Lock around these "
                "calls, or make them in a callback of fit"
            )
        _thread = current
        _of_replicas.append(call)


# Replacements. The first parameter is the function that they replace.


def _noted(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    call = Call(original.__name__)
    if call.name == "fit":
        given = inspect.signature(original).bind(model, *args, **kwargs)
        given.apply_defaults()
        first, end = given.arguments["initial_epoch"], given.arguments["epochs"]
        backups = sum(isinstance(each, keras.callbacks.BackupAndRestore) for each in listed(given.arguments["callbacks"]))
        call = Call("fit", f"{first} to {end}", backups, rounds=max(end - first, 1))
    return _during(call, lambda: original(model, *args, **kwargs))


def _call(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the method, in one thread at a time, and tells the strategy of a model if an exception leaves it."""
    if (hooks := hooks_of(model.distribute_strategy)) is None:
        return original(model, *args, **kwargs)
    _begin(f"{original.__name__} of {model.name}")
    try:
        return original(model, *args, **kwargs)
    except BaseException as error:
        hooks.leave_call(error)
        raise
    finally:
        with _lock:
            _of_replicas.pop()
