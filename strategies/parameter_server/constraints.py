"""Constraints of weights (`kernel_constraint`) under asynchronous worker groups: none may undo what another group updates.

After an update Keras reads a weight, computes what its constraint makes of it, and assigns that. What another group adds in
between would be lost. Here the ps computes it, while other groups wait to update the weights there.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.keras_hooks.held_optimizers import variables_of, with_inner
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.parameter_server.placement import ServerExtended, extended_of
from tfdist.strategies.parameter_server.variables import is_on_ps
from tfdist.strategies.private_api import patches

_log = logging.getLogger("tfdist")


def install() -> None:
    """Replaces the method of Keras' optimizers. Calling it again does nothing."""
    for apply in patches.APPLY.values():
        apply.patch(_apply)


def warn_of_lost_updates(model: Any, extended: ServerExtended) -> None:
    """Logs a warning that names weights that the workers assign as a whole, if several groups train them."""
    if not extended.has_several_groups:
        return
    layers = [each for each in model._flatten_layers() if isinstance(each, keras.layers.SpectralNormalization)]
    names = [f"{each.path}, a SpectralNormalization," for each in layers]
    names += [f"the constraint of {each.path}" for each in model.trainable_variables if each.constraint and not is_on_ps(each)]
    if names:
        _log.warning(
            "the training of %s loses updates: %s assigns a whole weight in each step, and what another worker group adds "
            "meanwhile is lost. Use one group, or leave it out",
            *(model.name, names[0]),
        )


def _apply(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    trainable_variables = None if trainable_variables is None else list(trainable_variables)  # It may be a generator.
    pairs = zip(grads, variables_of(optimizer, trainable_variables), strict=False)
    constrained = [(v, v.constraint) for gradient, v in pairs if gradient is not None and _is_constrained_there(optimizer, v)]
    if not constrained:
        return original(optimizer, grads, trainable_variables)
    with contextlib.ExitStack() as without_constraints:
        for variable, _ in constrained:
            without_constraints.enter_context(replaced(variable, constraint=None))
        result = original(optimizer, grads, trainable_variables)
    for variable, constraint in constrained:
        _constrain(optimizer._distribution_strategy.extended, unwrapped(variable._value), constraint)
    return result


def _is_constrained_there(optimizer: Any, variable: Any) -> bool:
    """Returns whether the ps has to apply the constraint of a variable after an update that is traced."""
    if getattr(variable, "constraint", None) is None or not is_on_ps(variable) or tf.executing_eagerly():
        return False
    extended = extended_of(optimizer)
    if extended is None or not extended.has_several_groups or len(with_inner(optimizer)) > 1:
        return False  # An optimizer inside of another one makes the update.
    replica = replica_context.current()  # The first replica makes the updates of its group.
    return replica is None or (replica.index == 0 and not replica_context.is_trial())


def _constrain(extended: ServerExtended, variable: Any, constraint: Callable[[Any], Any]) -> None:
    """Assigns what a constraint makes of a variable, while no group updates weights on the ps that hold it.

    A constraint may need all rows of a sharded variable. All groups lock its ps in the same order: none waits for another.
    """
    with contextlib.ExitStack() as locks:
        for part in variable.parts:
            locks.enter_context(extended.critical_section(part.device, []))
        with tf.device(variable.device):
            variable.assign(constraint(tf.identity(variable.read_parts())))
