"""Which of Keras' calls is running: `fit`, `evaluate`, `predict` or `test_on_batch`, and with which epochs."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from tfdist.strategies.keras_hooks.callbacks import listed
from tfdist.strategies.private_api import patches


@dataclass(frozen=True)
class Call:
    """A call of Keras' trainer.

    Attributes:
        name: of the method.
        epochs: those of a `fit`, such as "0 to 10"; "" for other methods.
        backups: how many `BackupAndRestore` a `fit` has; None for other methods.
    """

    name: str
    epochs: str = ""
    backups: int | None = None


_running: list[Call] = []


def install() -> None:
    """Notes calls from now on. Calling it again does nothing."""
    patches.FIT.patch(_fit)
    patches.EVALUATE.patch(_evaluate)
    patches.PREDICT.patch(_predict)
    patches.TEST_ON_BATCH.patch(_test_on_batch)


def running() -> Call | None:
    """Returns the innermost call of the program that has not returned; None if there is none."""
    return _running[-1] if _running else None


def is_over(call: Call) -> bool:
    """Returns whether a call that `running` has returned has ended since, by itself or by an exception."""
    return not any(each is call for each in _running)


def _during(call: Call, function: Callable[[], Any]) -> Any:
    _running.append(call)
    try:
        return function()
    finally:
        _running.pop()


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(original).bind(model, *args, **kwargs)
    given.apply_defaults()
    epochs = f"{given.arguments['initial_epoch']} to {given.arguments['epochs']}"
    backups = sum(isinstance(each, keras.callbacks.BackupAndRestore) for each in listed(given.arguments["callbacks"]))
    return _during(Call("fit", epochs, backups), lambda: original(model, *args, **kwargs))


def _evaluate(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    return _during(Call("evaluate"), lambda: original(model, *args, **kwargs))


def _predict(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    return _during(Call("predict"), lambda: original(model, *args, **kwargs))


def _test_on_batch(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    return _during(Call("test_on_batch"), lambda: original(model, *args, **kwargs))
