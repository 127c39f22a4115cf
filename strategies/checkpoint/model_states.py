"""What a model has beside its weights and its optimizer in the middle of a training: metrics, seeds of random layers, and
variables of TensorFlow."""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.checkpoint.strategy_state import storable
from tfdist.strategies.keras_hooks import global_seed
from tfdist.strategies.keras_hooks.held_optimizers import adopt_optimizer, held_optimizers, with_inner
from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.keras_hooks.metric_values import assign_metric_values
from tfdist.strategies.keras_hooks.trainer import has_own_call, mark_as_built
from tfdist.strategies.private_api import GLOBAL_SEED_GENERATOR, keras_global_state, seed_generator_module

_log = logging.getLogger("tfdist")


def build(model: Any, example: Any) -> None:
    """Makes the variables of a model and of its metrics, which Keras makes with the first step in one process.

    Its optimizers stay as they are: only its step, or a backup (`build_optimizers`), knows which variables they update.

    Args:
        model: the model.
        example: nested `tf.TypeSpec`s of a batch. Without all dimensions but the first, and without targets, as an autoencoder
            with its own `train_step` gets it, only a model that has no variables is made, if that is possible.
    """
    if not has_own_call(model):
        build_without_call(model)
        return
    leaves = tf.nest.flatten(example)
    has_ranks = all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves)
    if hooks_of(model.distribute_strategy) is not None or not has_ranks:
        return
    is_enough = isinstance(example, tuple) and all(None not in leaf.shape[1:] for leaf in leaves)
    # Batches for a `train_step` of the model's own need not be what it and its loss take. `BackupFile.load` says what to do.
    with _no_build(model.optimizer), contextlib.suppress(Exception):
        if is_enough or not model.built:
            model._symbolic_build(data_batch=example)


def build_without_call(model: Any) -> None:
    """Marks a model without `call`, such as a GAN, as built if its layers are: Keras saves and loads no other weights."""
    if not model.built and not has_own_call(model):
        with contextlib.suppress(ValueError):  # `BackupFile` says what is wrong.
            mark_as_built(model)


@contextlib.contextmanager
def _no_build(optimizer: Any) -> Iterator[None]:
    """Within the block, `build` of an optimizer does nothing. Keras builds it for all trainable variables of its model."""
    if optimizer is None:
        yield
        return
    vars(optimizer)["build"] = lambda variables: None
    try:
        yield
    finally:
        del vars(optimizer)["build"]


def updated(model: Any) -> list[list[int] | None]:
    """Returns which variables each optimizer of a model updates: their places among its weights.

    The list has None for an optimizer that is not built, or also updates variables that the model does not hold. Only the
    `train_step` of a model with optimizers of its own knows which variables they update.
    """
    places = {id(variable): place for place, variable in enumerate(model.weights)}
    found: list[list[int] | None] = []
    for optimizer in held_optimizers(model):
        places_of_own = [places.get(id(variable)) for variable in getattr(optimizer, "_trainable_variables", None) or [None]]
        known = [place for place in places_of_own if place is not None]
        found.append(known if optimizer.built and len(known) == len(places_of_own) else None)
    return found


def build_optimizers(model: Any, found: list[list[int] | None] | None) -> None:
    """Builds the optimizers of a model, so that their state can be loaded. To be called in the scope of its strategy.

    Args:
        model: the model.
        found: what `updated` returned for the model before; None if that is not known.
    """
    optimizers = held_optimizers(model)
    if found is None or len(found) != len(optimizers):
        found = [None] * len(optimizers)
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    weights = model.weights
    for optimizer, places in zip(optimizers, found, strict=True):
        if not optimizer.built and places is not None and max(places) < len(weights):
            if hooks_of(model.distribute_strategy) is not None:
                adopt_optimizer(optimizer, model.distribute_strategy)
            optimizer.build([weights[place] for place in places])


def kinds(model: Any) -> list[list[Any]]:
    """Returns, for each optimizer of a model, the name of its class and the number of its variables.

    The name has that of the optimizer inside it, too. The number is None for an optimizer that is not built.
    """
    optimizers = held_optimizers(model)
    names = [" of ".join(type(each).__name__ for each in with_inner(optimizer)) for optimizer in optimizers]
    return [[name, len(each.variables) if each.built else None] for name, each in zip(names, optimizers, strict=True)]


def shapes(model: Any) -> list[list[int]]:
    """Returns the shapes of the weights of a model, in an order that does not depend on their names."""
    return sorted(list(variable.shape) for variable in model.weights)


def _some(shapes: "Counter[tuple[int, ...]]") -> str:
    """Returns the first shapes, for a sentence."""
    texts = sorted(map(str, shapes.elements()))
    return ", ".join(texts[:3]) + (", ..." if len(texts) > 3 else "")


def difference(model: Any, weights: list[list[int]] | None, optimizers: list[list[Any]] | None) -> str:
    """Returns what differs from the model of a backup, as the end of a sentence; "" for nothing. Its optimizers are built.

    Keras loads files of other models as far as they fit: weights that the model lacks are left out, and an optimizer whose
    variables are others begins anew.

    Args:
        model: the model.
        weights: what `shapes` returned for that of the backup; None if unknown.
        optimizers: what `kinds` returned for it; None if unknown.
    """
    if weights is not None and weights != (found := shapes(model)):
        if len(weights) != len(found):
            return f"it had {len(weights)} weights and has {len(found)}"
        had, has = Counter(map(tuple, weights)), Counter(map(tuple, found))
        return f"it had weights of the shapes {_some(had - has)} and has {_some(has - had)} in their place"
    for (name_before, before), (name, now) in zip(optimizers or (), kinds(model), strict=False):
        if name != name_before:
            return f"it was trained with {name_before} and has {name}"
        if now is None and before is not None:
            _log.warning("the state of %s begins anew: it also updates variables that %s does not hold", name, model.name)
        elif before is not None and now != before:
            return f"its optimizer {name} had {before} variables and has {now}: other options, or it updates other weights"
    return ""


def learning_rates(model: Any) -> list[tuple[Any, Any]]:
    """Returns the learning rates of a model's optimizers that are variables, not schedules, each with its value."""
    optimizers = (each for optimizer in held_optimizers(model) for each in with_inner(optimizer))
    rates = (getattr(each, "_learning_rate", None) for each in optimizers)
    return [(rate, rate.numpy()) for rate in rates if isinstance(rate, keras.Variable)]


def metrics(model: Any) -> list[Any]:
    """Returns the values of the metrics in the middle of an epoch, as numpy arrays."""
    hooks = hooks_of(model.distribute_strategy)
    return [v.numpy() for v in model.metrics_variables] if hooks is None else hooks.metric_values(model)


def set_metrics(model: Any, values: list[Any]) -> bool:
    """Sets what `metrics` returned. Returns whether the metrics have these values now."""
    hooks = hooks_of(model.distribute_strategy)
    return assign_metric_values(model, values) if hooks is None else hooks.set_metric_values(model, values)


def seeds(model: Any) -> list[Any]:
    """Returns the states of the generators of random numbers; nothing if the strategy saves them itself."""
    return [variable.numpy() for variable in _seed_variables(model)]


def set_seeds(model: Any, values: list[Any]) -> None:
    """Sets what `seeds` returned, as far as the model has as many."""
    if hooks_of(model.distribute_strategy) is None and len(values) > len(_seed_variables(model)):
        seed_generator_module.global_seed_generator()  # Keras makes it in the first step that draws from it.
    for variable, value in zip(_seed_variables(model), values, strict=False):
        variable.assign(value)


def own_variables(model: Any) -> list[Any]:
    """Returns the values of the variables that Keras does not save, as numpy arrays.

    Those of TensorFlow that are attributes of a model and its layers, such as a `tf.Variable` that counts, and the state of a
    `tf.random.Generator`; Keras' variables of losses, such as a moving average; the states of recurrent layers with
    `stateful=True`; and those of layers with LoRA: Keras' files have the sum of a kernel and its two factors, and zeros in
    place of the factors, which no step would change.
    """
    return [storable(variable.numpy()) for variable in _own_variables(model)]


def set_own_variables(model: Any, values: list[Any]) -> None:
    """Sets what `own_variables` returned. Warns if the model has others."""
    variables = _own_variables(model)
    if [variable.shape for variable in variables] != [np.shape(value) for value in values]:
        _log.warning(
            "%s has other variables of TensorFlow (tf.Variable, tf.random.Generator) than its backup: they begin anew",
            model.name,
        )
        return
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.cast(value, variable.dtype))


def is_read_alone(model: Any) -> bool:
    """Returns whether a task reads what a backup holds without the others, apart from the metrics."""
    if getattr(model.distribute_strategy.extended, "groups", None) is not None:  # Shards may be in other tasks.
        return False
    optimizers = (variable for each in held_optimizers(model) for variable in each.variables)
    variables = (*model.weights, *optimizers, *_seed_variables(model), *_own_variables(model))
    values = [getattr(variable, "_value", variable) for variable in variables]
    is_reduced = any(getattr(value, "synchronization", None) == tf.VariableSynchronization.ON_READ for value in values)
    is_of_keras = all(layer.save_own_variables.__module__.startswith("keras.") for layer in model._flatten_layers())
    return is_of_keras and not is_reduced  # A method of the user's own may read anything.


def _own_variables(model: Any) -> list[Any]:
    found: dict[int, Any] = {
        id(each): each for loss in _losses(model) for each in vars(loss).values() if isinstance(each, keras.Variable)
    }
    saved = {id(each) for each in model.variables}  # By Keras: in its files, or as metrics and seeds.
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            found |= {id(each): each for each in layer.weights}
        for attribute in vars(layer).values():
            values = attribute.values() if isinstance(attribute, dict) else attribute
            for value in values if isinstance(attribute, list | tuple | dict) else [attribute]:
                found |= {id(each): each for each in _variables_of(value) if id(each) not in saved}
    return list(found.values())


def _variables_of(value: Any) -> Sequence[Any]:
    if isinstance(value, tf.Variable):
        return [value] if value.dtype != tf.string else []
    if isinstance(value, keras.Variable):  # Keras lists no state of a recurrent layer with `stateful=True`.
        return [value]
    if isinstance(value, tf.random.Generator):
        return [value.state]
    return value.variables if isinstance(value, tf.Module) else []


def _seed_variables(model: Any) -> list[Any]:
    strategy = model.distribute_strategy
    if hasattr(strategy, "training_state"):
        return []
    found = {id(v): v for v in model.variables if v.name == "seed_generator_state"}
    common = global_seed.state_of(strategy)
    if hooks_of(strategy) is None:
        own = keras_global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        common = [] if own is None else [own.state]
    optimizers = [each for held in held_optimizers(model) for each in with_inner(held)]
    values = (value for each in (*optimizers, *_losses(model)) for value in vars(each).values())
    others = {id(value.state): value.state for value in values if isinstance(value, keras.random.SeedGenerator)}
    return [*found.values(), *common, *(state for key, state in others.items() if key not in found)]


def _losses(model: Any) -> list[Any]:
    return [each for each in tf.nest.flatten(getattr(model, "loss", None)) if isinstance(each, keras.losses.Loss)]
