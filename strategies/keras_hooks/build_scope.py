"""Models that are built outside of their strategy's scope: `model(x)`, `model.build(shape)` or `summary` after the scope.

A subclassed model creates its variables when it is built, which programs often do after `with strategy.scope():`. Its variables
then belong to the strategy under which the model was made, as if it had been built inside. Layers that are built by their
first call in `strategy.run` are, too.

A strategy's model that `fit` builds, Keras calls on symbolic tensors, and what a user's own `build` does then fails where it
works in one process: there are no values, so `keras.Variable(values)` is refused. Such a `build` gets shapes only, so it runs
outside of that call.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks.own_code import is_known, owner_of
from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.private_api import in_stateless_scope, is_default, keras_global_state, patches, symbolic_builds

_building: Any = None  # The strategy whose model is called on symbolic tensors.


def install() -> None:
    """Makes models enter the scope of their strategy while they are built. Calling it again does nothing."""
    patches.OPEN_NAME_SCOPE.patch(_open_name_scope)
    patches.BUILD_LAYER.patch(_maybe_build)
    patches.RESET_GRAPH.patch(_reset_graph)


def _open_name_scope(original: Callable[..., Any], layer: Any) -> Any:
    if not isinstance(layer, keras.Model) or layer.built or tf.distribute.has_strategy():
        return original(layer)
    strategy = getattr(layer, "_distribute_strategy", None)  # A model has none while it is made.
    return original(layer) if hooks_of(strategy) is None else _within(strategy, original(layer))


def _reset_graph(original: Callable[..., Any]) -> None:
    """Keeps the default graph in the scope of a strategy: TensorFlow holds the scope in it, and eager programs little else."""
    if hooks_of(tf.distribute.get_strategy()) is None:
        original()


@contextlib.contextmanager
def _within(strategy: Any, name_scope: Any) -> Iterator[None]:
    with strategy.scope(), name_scope:
        yield


@contextlib.contextmanager
def symbolic_build(strategy: Any) -> Iterator[None]:
    """Surrounds a call of a model on symbolic tensors, which builds it for a strategy."""
    global _building
    before, _building = _building, strategy
    try:
        yield
    finally:
        _building = before


def _maybe_build(original: Callable[..., Any], layer: Any, call_spec: Any) -> None:
    if _building is not None and not layer.built and in_stateless_scope() and not _is_build_known(layer):
        with symbolic_builds.left(), _building.scope():
            original(layer, call_spec)
        return
    strategy = None if layer.built or in_stateless_scope() else strategy_in_own_loop()
    if strategy is None or not all(map(_is_symbolic, keras.tree.flatten(call_spec.arguments_dict))):
        original(layer, call_spec)
        return
    symbolic = copy.copy(call_spec)
    for name in ("arguments_dict", "tensor_arguments_dict", "first_arg"):
        setattr(symbolic, name, keras.tree.map_structure(_as_symbolic, getattr(call_spec, name)))
    scopes = keras_global_state.get_global_attribute("name_scope_stack", default=[])

    def build() -> None:
        keras_global_state.set_global_attribute("name_scope_stack", list(scopes))
        original(layer, symbolic)

    outside_of_steps(strategy, build)


def _is_build_known(layer: Any) -> bool:
    """Returns whether the `build` of a layer is Keras' own, or it has none."""
    return is_default(layer.build) or is_known(owner_of(type(layer), "build"))


def _is_symbolic(value: Any) -> bool:
    """Returns whether `_as_symbolic` can replace an argument of a layer, or need not."""
    return isinstance(value, tf.Tensor) or not tf.is_tensor(value)


def _as_symbolic(value: Any) -> Any:
    return keras.KerasTensor(value.shape, value.dtype.name) if isinstance(value, tf.Tensor) else value


def outside_of_steps(strategy: Any, make: Callable[[], Any]) -> None:
    """Makes variables in the scope of a strategy, called in `strategy.run`: outside of the replica and of what is traced.

    TensorFlow cannot initialize variables of several replicas that a function creates. And what a restored checkpoint holds for
    variables to come is assigned as soon as they exist: in a replica, to that replica alone.

    Args:
        strategy: the strategy.
        make: makes the variables, in a thread of its own, which is in no replica and in no function.
    """

    def in_scope() -> None:
        with strategy.scope():
            make()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(in_scope).result()


def strategy_in_own_loop() -> Any:
    """Returns the strategy whose replica runs a step of the user's own, in `strategy.run`; None elsewhere."""
    context = tf.distribute.get_replica_context()
    if context is None or replica_context.current() is not None or hooks_of(context.strategy) is None:
        return None
    return context.strategy


def strategy_of(value: Any) -> Any:
    """Returns the strategy in whose scope a variable of TensorFlow was created; None if it was in none."""
    return getattr(value, "tfdist_strategy", None) or getattr(value, "distribute_strategy", None)


def check_weights(model: Any, strategy: Any) -> None:
    """Raises ValueError if a trainable weight of `model` was created outside of the scope of `strategy`."""
    for weight in model.trainable_weights:
        if strategy_of(weight._value) is not strategy:
            raise ValueError(
                f"the weight {weight.path} of {model.name} was created outside the strategy's scope, so it would not train "
                "on all replicas; make and build its layer, and call enable_lora or quantize, inside `with strategy.scope():`"
            )
