"""What a checkpoint that a program has restored holds for variables to come: TensorFlow assigns it as soon as they exist."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_function

_Trackable: Any = need("tensorflow.python.trackable.base", "Trackable")
need("tensorflow.python.trackable.base", "Trackable", "_deferred_dependencies")
need_function(_Trackable, "_lookup_dependency", "self, name, cached_dependencies", "calls")
need_function(_Trackable, "_handle_deferred_dependencies", "self, name, trackable", "calls")


@contextlib.contextmanager
def held_back(root: Any, scope: Callable[[], Any]) -> Iterator[None]:
    """Lets what is restored for the variables of an object wait for the end of the block.

    Inside a stateless scope Keras' variables exist before they have a value, and to restore them raises AttributeError.

    Args:
        root: a trackable object.
        scope: returns the context in which it is restored.
    """
    waiting: list[tuple[Any, str, Any]] = []
    for each in tf.train.TrackableView(root).descendants():
        waiting += [(each, name, positions) for name, positions in each._deferred_dependencies.items()]
        each._deferred_dependencies.clear()
    try:
        yield
    finally:
        with scope():
            for each, name, positions in waiting:
                each._deferred_dependencies.setdefault(name, []).extend(positions)
                child = each._lookup_dependency(name)
                if child is not None:
                    each._handle_deferred_dependencies(name, child)
