"""Keras builds the model of a strategy on symbolic tensors, in scopes in which variables get values later or none at all."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfdist.strategies.private_api import keras_global_state
from tfdist.strategies.private_api.checks import need

_SCOPES = {"stateless_scope": "get_stateless_scope", "symbolic_scope": "get_symbolic_scope"}
for _name, _function in _SCOPES.items():
    need(f"keras.src.backend.common.{_name}", _function)


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Leaves, for the block, the scopes in which Keras calls a model on symbolic tensors, and the graph of these."""
    before = {name: keras_global_state.get_global_attribute(name) for name in _SCOPES}
    try:
        with tf.init_scope():
            for name in _SCOPES:
                keras_global_state.set_global_attribute(name, None)
            yield
    finally:
        for name, scope in before.items():
            keras_global_state.set_global_attribute(name, scope)
