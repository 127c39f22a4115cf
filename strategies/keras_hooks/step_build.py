"""Builds a model by its own `train_step`, where Keras cannot: it has no `call`, or its batches are not what `call` takes.

In one process the first step builds such a model. Here its variables have to exist before: the step is traced on symbolic
tensors, as Keras builds other models. It assigns nothing, all gradients are zeros, and no optimizer updates.
"""

import logging
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.build_scope import symbolic_build
from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.keras_hooks.replicas.batch_sums import gradients_in_full
from tfdist.strategies.private_api import DistributedVariable, compute_output_spec, patches
from tfdist.strategies.private_api.deferred_restores import held_back
from tfdist.strategies.private_api.symbolic_builds import with_composites

_log = logging.getLogger("tfdist")
_is_building = False
_finished: weakref.WeakSet[Any] = weakref.WeakSet()  # Models whose step got to its end.


def install() -> None:
    """Makes tapes and optimizers leave out what a model is not built by. Calling it again does nothing."""
    patches.GRADIENT.patch(_gradient)


def is_building() -> bool:
    """Returns whether a step is traced to build its model."""
    return _is_building


def has_built(model: Any) -> bool:
    """Returns whether the step of a model has built it to the end. Layers that are not built then, it does not call."""
    return model in _finished


def build(model: Any, batch: Any) -> None:
    """Builds the layers of a model that its `train_step` calls, as far as the step gets.

    Args:
        model: a Keras model.
        batch: nested tensors or specs with the shapes of a batch.
    """
    global _is_building

    def step(data: Any) -> None:
        model.train_step(data)

    _is_building = True
    try:
        if _called(model, step, "train_step", batch):
            _finished.add(model)
    finally:
        _is_building = False


def build_for_predictions(model: Any, batch: Any) -> None:
    """Builds the layers of a model that its `predict_step` calls; Keras leaves that to the function that `predict` traces.

    There TensorFlow cannot assign what a checkpoint holds for the variables of several replicas.

    Args:
        model: a Keras model.
        batch: nested tensors or specs with the shapes of a batch.
    """
    if not all(layer.built for layer in model._flatten_layers()):
        _called(model, model.predict_step, "predict_step", batch)


def _called(model: Any, step: Callable[[Any], Any], name: str, batch: Any) -> bool:
    """Calls a step on symbolic tensors, in the scope of the model's strategy. Returns whether it got to its end."""
    strategy = model.distribute_strategy
    with held_back(model, strategy.scope), strategy.scope(), symbolic_build(strategy):
        try:
            compute_output_spec(lambda data: step(with_composites(data, batch)), tf.nest.map_structure(_symbolic, batch))
        except Exception as error:  # The function that Keras traces will raise it, too, if it is the step's own.
            _log.debug("the %s of %s does not build the model", name, model.name, exc_info=error)
            return False
    return True


def _symbolic(value: Any) -> Any:
    return None if value is None else keras.KerasTensor(value.shape, keras.backend.standardize_dtype(value.dtype))


# The replacement. The first parameter is the function that it replaces.


def _gradient(original: Callable[..., Any], tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_building():
        if not args:
            kwargs["output_gradients"] = gradients_in_full(target, sources, kwargs.get("output_gradients"))
        try:
            return original(tape, target, sources, *args, **kwargs)
        except ValueError:
            _check_own_loop(sources)
            raise

    def zeros(source: Any) -> Any:
        return tf.zeros_like(source) if tf.is_tensor(source) else tf.zeros(source.shape, source.dtype)

    return tf.nest.map_structure(zeros, sources)


def _check_own_loop(sources: Any) -> None:
    """Raises what a strategy says of loops of the user's own, if a tape has failed at its variables outside of replicas."""
    hooks = hooks_of(tf.distribute.get_strategy()) if tf.distribute.in_cross_replica_context() else None
    values = [getattr(source, "_value", source) for source in tf.nest.flatten(sources)]
    if hooks is not None and any(isinstance(value, DistributedVariable) for value in values):
        hooks.check_own_loop()
