"""Tells the strategy of a model that an exception has left a call of Keras' trainer, before the program goes on."""

from collections.abc import Callable
from typing import Any

from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.private_api import patches


def install() -> None:
    """Tells it from now on. Calling it again does nothing."""
    patches.FIT.patch(_call)
    patches.EVALUATE.patch(_call)


# The replacement. The first parameter is the function that it replaces.


def _call(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(model, *args, **kwargs)
    except BaseException as error:
        if (hooks := hooks_of(model.distribute_strategy)) is not None:
            hooks.leave_call(error)
        raise
