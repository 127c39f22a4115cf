"""Keras' variables for replicas that update together: records what a step assigns, and checks what it assigns to metrics."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks import metric_sums, metric_trial, step_trial
from tfdist.strategies.keras_hooks.interface import hooks_of, is_data_parallel
from tfdist.strategies.keras_hooks.replicas import own_values, replica_context
from tfdist.strategies.keras_hooks.replicas.added_losses import by_examples
from tfdist.strategies.keras_hooks.replicas.same_rows import depends_on_batch
from tfdist.strategies.private_api import SyncOnReadVariable, in_stateless_scope, patches


def install() -> None:
    """Makes assignments ask for the current replica. Calling it again does nothing."""
    patches.INITIALIZE.patch(_initialize)
    patches.DIRECT_ASSIGN.patch(_direct_assign)
    patches.ASSIGN_IN_PLACE["assign_add"].patch(_assign_add)
    patches.ASSIGN_IN_PLACE["assign_sub"].patch(_assign_sub)
    patches.NUMBERS["__int__"].add(lambda variable: int(variable.numpy()))
    patches.NUMBERS["__float__"].add(lambda variable: float(variable.numpy()))


def _initialize(original: Callable[..., Any], variable: Any, value: Any) -> None:
    """Gives the first value of a metric to one replica: TensorFlow gives it to each, and the metric is their sum."""
    original(variable, value)
    held = variable._value
    if not isinstance(held, SyncOnReadVariable) or variable.aggregation != "sum" or not tf.executing_eagerly():
        return
    strategy = held.distribute_strategy
    if _is_outside_of_replicas(strategy) and np.any(first := strategy.experimental_local_results(held)[0].numpy()):
        _assign_sum(held, tf.constant(first))


def _direct_assign(original: Callable[..., Any], variable: Any, value: Any) -> Any:
    replica = replica_context.current()
    if replica is None or in_stateless_scope() or not tf.distribute.get_replica_context():
        held = variable._value
        if isinstance(held, SyncOnReadVariable):
            # Keras uses nothing that this returns. TensorFlow would read the variable: a collective for each one of a metric.
            value = tf.cast(value, held.dtype)
            if held.dtype.is_integer and variable.aggregation == "sum" and _is_outside_of_replicas(held.distribute_strategy):
                return _assign_sum(held, value)
            return held.assign(value, read_value=False)
        return original(variable, value)
    if replica.recorded is not None:
        _record(replica, replica.recorded, variable, by_examples(replica, value) if _is_sum(replica, variable) else value)
        return None
    if id(variable) in replica.same and isinstance(variable._value, tf.distribute.DistributedValues):
        local = replica.strategy.experimental_local_results(variable._value)[replica.index]
        return local.assign(tf.cast(value, local.dtype))
    metric_sums.check(replica, variable, value)
    replica.assigned[id(variable)] = variable
    own_values.note(replica, variable, value)
    value = own_values.mean_of_rate(replica, variable, metric_trial.counted(replica, variable, value))
    if (local := own_values.mean_to_come(replica, variable)) is not None:
        return local.assign(tf.cast(value, local.dtype))
    return original(variable, value)


def _is_outside_of_replicas(strategy: Any) -> bool:
    """Returns whether TensorFlow would assign a value to all replicas of a data parallel strategy."""
    context = tf.distribute.get_replica_context()
    return is_data_parallel(strategy) and (context is None or context.strategy is not strategy)


def _assign_sum(held: Any, value: Any) -> None:
    """Gives a sum to the first replica. TensorFlow gives each a part, and integers are rounded down, so metrics lose counts."""
    strategy = held.distribute_strategy
    hooks: Any = hooks_of(strategy)
    for number, local in zip(hooks.layout.local, strategy.experimental_local_results(held), strict=False):
        local.assign(tf.zeros_like(value) if number else value)


def _is_sum(replica: replica_context.Replica, variable: Any) -> bool:
    """Returns whether TensorFlow assigns a variable the sum of what the replicas assign."""
    return replica.share is not None and (variable.aggregation, variable.synchronization) == ("sum", "auto")


def _assign_add(original: Callable[..., Any], variable: Any, value: Any, sign: int = 1) -> Any:
    """Adds what all replicas add to a variable with `aggregation="sum"`. With Keras they would add its old value, too."""
    replica = replica_context.current()
    if replica is None or in_stateless_scope() or not tf.distribute.get_replica_context() or not _is_sum(replica, variable):
        return original(variable, value)
    held = variable._value
    added = sign * tf.broadcast_to(tf.cast(value, held.dtype), held.shape)
    if replica.recorded is not None:
        _record(replica, replica.recorded, variable, tf.convert_to_tensor(held) + by_examples(replica, added))
    else:
        held.assign_add(tf.where(replica.share > 0, added, tf.zeros_like(added)))
    return tf.convert_to_tensor(variable)


def _assign_sub(original: Callable[..., Any], variable: Any, value: Any) -> Any:
    return _assign_add(original, variable, value, sign=-1)


def _record(replica: replica_context.Replica, recorded: list[Any], variable: Any, value: Any) -> None:
    """Records what a step would assign that is only tried out."""
    if metric_sums.is_counted(variable):
        metric_trial.record(replica, variable, value)
        return
    graph = tf.compat.v1.get_default_graph()
    if graph is not replica.graph:  # A branch or a loop.
        replica.branches.append(graph)
    if not tf.as_dtype(variable.dtype).is_floating:
        if not _is_sum(replica, variable) and depends_on_batch(value, of_random=False):  # There is no mean of integers.
            replica.integers.append(variable.path)
        return
    tensor = tf.convert_to_tensor(value)
    if tensor.graph is not replica.graph:  # Nothing outside of the branch or loop can compute with it.
        replica.unseen += [variable.path] if depends_on_batch(tensor, of_random=False) else []
        return
    _, before = replica.held.get(id(variable), (variable, variable._value))
    is_sharded = hasattr(before, "as_split")  # See `model_parallel`.
    recorded.append(
        (variable.path, step_trial.change(tensor, tf.convert_to_tensor(before.as_split() if is_sharded else before)))
    )
    # What follows in the step reads what it has assigned, but not the parts of a weight, of which it may still take gradients.
    if graph is replica.graph and not (is_sharded and variable.trainable):
        replica.held.setdefault(id(variable), (variable, variable._value))
        variable._value = tensor if is_sharded else step_trial.Assigned(before, tensor)
