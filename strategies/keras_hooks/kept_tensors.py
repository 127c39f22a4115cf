"""Tensors that layers keep in their attributes during a step, such as the means of a VAE: each replica reads its own.

The replicas of a worker group, and those of a task whose steps run eagerly, share the Python objects. Where they add up, one
waits while the next runs up to the same place, and overwrites what the first has kept.
"""

import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks.own_code import is_known
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.private_api import DropoutRNNCell, KerasVariable, patches

_MISSING = object()


def install() -> None:
    """Makes replicas find what they have kept. Calling it again does nothing."""
    patches.MERGE_CALL.patch(_merge_call)


def _merge_call(original: Callable[..., Any], context: Any, fn: Any, args: Any, kwargs: Any) -> Any:
    replica = replica_context.current()
    if replica is None or replica.model is None:
        return original(context, fn, args, kwargs)
    kept = [(owner, _attributes(owner)) for owner in _owners(replica.model)]
    result = original(context, fn, args, kwargs)
    for owner, attributes in kept:
        _restore(vars(owner), attributes)
    return result


def _owners(model: Any) -> Iterator[Any]:
    """Yields the layers of a model that may keep tensors, and objects of the user's in their attributes, such as a loss."""
    for layer in filter(_may_keep, model._flatten_layers()):
        yield layer
        yield from (each for each in vars(layer).values() if not isinstance(each, keras.Layer) and _is_object(each))


def _is_object(value: Any) -> bool:
    is_code = isinstance(value, type | types.ModuleType) or callable(getattr(value, "__get__", None))
    return hasattr(value, "__dict__") and not is_code and not is_known(type(value), "tensorflow", "tfdist")


def _may_keep(layer: Any) -> bool:
    """Returns whether a layer may keep tensors. Of Keras' own only cells do: their masks of dropout, during a sequence."""
    return not is_known(type(layer)) or isinstance(layer, DropoutRNNCell)


def _attributes(owner: Any) -> dict[str, tuple[Any, Any]]:
    """Returns the attributes of a layer or another object, each with a copy of the list or dict that it is."""
    return {name: (value, value.copy() if isinstance(value, list | dict) else None) for name, value in vars(owner).items()}


def _restore(current: dict[str, Any], kept: dict[str, tuple[Any, Any]]) -> None:
    """Gives attributes that hold tensors, or have held some, the values that they had."""
    for name in current.keys() | kept.keys():
        value, (before, copy) = current.get(name, _MISSING), kept.get(name, (_MISSING, None))
        if value is not before and (_holds_tensor(value) or _holds_tensor(before)):
            if before is _MISSING:
                del current[name]
            else:
                current[name] = before
        if copy is not None and (_holds_tensor(copy) or _holds_tensor(before)):
            before.clear()
            before.extend(copy) if isinstance(before, list) else before.update(copy)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, tuple | list | dict):
        return any(map(_holds_tensor, value.values() if isinstance(value, dict) else value))
    return bool(tf.is_tensor(value)) and not isinstance(value, tf.Variable | KerasVariable)
