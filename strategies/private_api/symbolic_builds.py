"""Keras builds the model of a strategy on symbolic tensors, in scopes in which variables get values later or none at all."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import keras_global_state
from tfdist.strategies.private_api.checks import need, need_attributes, need_function

_SCOPES = {"stateless_scope": "get_stateless_scope", "symbolic_scope": "get_symbolic_scope"}
for _name, _function in _SCOPES.items():
    need(f"keras.src.backend.common.{_name}", _function)

in_symbolic_scope: Any = need("keras.src.backend.common.symbolic_scope", "in_symbolic_scope")

_COMPOSITES = (tf.RaggedTensor, tf.RaggedTensorSpec, tf.SparseTensor, tf.SparseTensorSpec)

_Function: Any = need("keras.src.ops.function", "Function")
need_function(_Function, "_run_through_graph", None, "replaces")
need_attributes(_Function, "_outputs_struct")


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


@contextlib.contextmanager
def known_outputs(model: Any) -> Iterator[None]:
    """Lets a functional model give symbolic outputs without calling its layers, if these are built and the shapes are known."""
    graph = getattr(model, "_functional", model)  # Of a Sequential.
    outputs = getattr(graph, "_outputs_struct", None)
    is_built = outputs is not None and all(layer.built for layer in model._flatten_layers())
    if not is_built or any(None in each.shape[1:] or each.sparse for each in tf.nest.flatten(outputs)):
        yield
        return
    own = vars(graph)  # Not an assignment, which Keras would track.
    own["_run_through_graph"] = lambda *args, **kwargs: tf.nest.map_structure(
        lambda each: tf.compat.v1.placeholder(each.dtype, each.shape), outputs
    )
    try:
        yield
    finally:
        del own["_run_through_graph"]


@contextlib.contextmanager
def composite_inputs(model: Any, inputs: Any) -> Iterator[None]:
    """Lets `call` of a model get symbolic ragged and sparse inputs as such: Keras makes dense ones of the shapes of a batch."""
    if not _has_composites(inputs):
        yield
        return
    own, call = vars(model), model.call  # Not an assignment, which Keras would track.
    own["call"] = lambda x, *args, **kwargs: call(with_composites(x, inputs), *args, **kwargs)
    try:
        yield
    finally:
        del own["call"]


def with_composites(symbolic: Any, values: Any) -> Any:
    """Returns symbolic tensors with ragged and sparse ones where a batch, or its spec, has such values."""
    return tf.nest.map_structure(_composite, symbolic, values) if _has_composites(values) else symbolic


def _composite(dense: Any, value: Any) -> Any:
    if not isinstance(value, _COMPOSITES):
        return dense
    spec = value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)
    parts = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in tf.nest.flatten(spec, expand_composites=True)]
    return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)


def _has_composites(values: Any) -> bool:
    return any(isinstance(each, _COMPOSITES) for each in tf.nest.flatten(values))
