"""Adds a callback of tfdist to those that the user gives to `fit`."""

from typing import Any

import keras
import tensorflow as tf


def listed(callbacks: Any) -> list[Any]:
    """Returns the callbacks in the `callbacks` argument of `fit`, in whatever form it is; see `with_callback`."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return tf.nest.flatten(callbacks) if callbacks else []


def with_callback(callback: keras.callbacks.Callback, model: Any, callbacks: Any) -> Any:
    """Returns the `callbacks` argument of `fit` with `callback` after the user's.

    A `CallbackList` of the user stays the same object. `fit` may get it again, so an earlier callback of this class leaves it.

    Args:
        callback: the callback.
        model: the model that `fit` trains.
        callbacks: the user's argument: None, a callback, a list or tuple of them, or a `CallbackList`.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callback.set_model(model)  # Keras sets both only in lists that it makes itself.
        callback.set_params(callbacks.params or {})
        callbacks.callbacks[:] = [*(each for each in callbacks.callbacks if type(each) is not type(callback)), callback]
        return callbacks
    if isinstance(callbacks, list | tuple):
        return [*callbacks, callback]
    return [callbacks, callback] if callbacks else [callback]
