"""Variables that a step assigns by itself although an optimizer updates them too, such as those that a batch initializes.

What depends on the batch differs between replicas, and would do so for ever. What the replicas take instead:

* the mean, each with its share of the examples: before the update, or at the end of the step if it assigns them after that;
* the value of the first replica, which draws what one process does, for random numbers: their mean would not be one. So also
  for integers and truth values, which have no mean;
* nothing, where a value follows from variables alone, as by clipping weights: it is the same everywhere.
"""

from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.interface import is_data_parallel
from tfdist.strategies.keras_hooks.replicas.function_arguments import deciding_inputs, outermost
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.same_rows import depends_on_batch
from tfdist.strategies.private_api import KerasVariable


def note(replica: Replica, variable: Any, value: Any) -> None:
    """Notes what a step assigns, if it is not an optimizer that does."""
    if not replica.reduced:
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        value = value._value if isinstance(value, KerasVariable) else value
        value = tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value  # Its value of now.
        replica.given.setdefault(id(variable), (variable, []))[1].append((value, graph))
        replica.averaged.discard(id(variable))


def mean_to_come(replica: Replica, variable: Any) -> Any:
    """Returns this replica's part of a variable with `aggregation="mean"`, which the step assigns; None for another variable.

    TensorFlow would assign the mean over the replicas, also of one without examples.
    """
    is_mean = (variable.aggregation, variable.synchronization) == ("mean", "auto") and tf.as_dtype(variable.dtype).is_floating
    is_of_replicas = is_mean and isinstance(variable._value, tf.distribute.DistributedValues)
    return _local(replica, variable) if is_of_replicas and is_data_parallel(replica.strategy) else None


def mean_of_rate(replica: Replica, variable: Any, value: Any) -> Any:
    """Returns what all replicas assign to a learning rate that the step computes from its batch: the mean.

    The update that follows reads it, and TensorFlow would take the value of the first replica. Other values stay as they are.
    """
    is_rate = (variable.name, variable.aggregation) == ("learning_rate", "only_first_replica")
    is_taken = is_rate and not replica.reduced and replica.share is not None and replica.postponed is None
    if not is_taken:
        return value
    is_eager = tf.executing_eagerly()
    if not is_eager and (replica.graph is not tf.compat.v1.get_default_graph() or not has_own_value(replica, id(variable))):
        return value
    share = tf.cast(replica.share, tf.float64)
    total, whole = all_reduce_sum([counted(value, share), share])
    return tf.cast(tf.math.divide_no_nan(total, whole), variable.dtype)


def take_means(replica: Replica, variables: Any) -> None:
    """Gives variables that an optimizer is about to update the mean of what the replicas have assigned. All have to call it.

    Sharded ones get it at the end of the step.
    """
    if replica.share is None or not is_data_parallel(replica.strategy):
        return
    own = [v for v in variables if has_own_value(replica, id(v)) and isinstance(v._value, tf.distribute.DistributedValues)]
    if not own:
        return
    local = [_local(replica, variable) for variable in own]
    share = tf.cast(replica.share, tf.float64)
    is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
    first = of_first(replica)
    weights = [tf.cast(is_first, tf.float64) if id(variable) in first else share for variable in own]
    *sums, whole = all_reduce_sum([*map(counted, local, weights), share])
    for variable, value, total in zip(own, local, sums, strict=True):
        mean = total if id(variable) in first else tf.math.divide_no_nan(total, whole)
        value.assign(tf.cast(mean, value.dtype))
        replica.averaged.add(id(variable))


def counted(value: Any, share: Any) -> Any:
    """Returns a value in float64 times the share of a replica; zeros for one without examples, whose stand-in may give NaN."""
    weighted = tf.cast(value, tf.float64) * share
    if isinstance(value, tf.experimental.ExtensionType):
        return weighted
    return tf.where(share > 0, weighted, tf.zeros_like(weighted))


def of_first(replica: Replica) -> set[int]:
    """Returns the ids of the variables that the step gives each replica a value of, of which that of the first one counts."""
    keys = _keys(replica)

    def is_of_first(key: int, variable: Any, values: list[tuple[Any, Any]]) -> bool:
        if not tf.as_dtype(variable.dtype).is_floating:
            return _differs(replica, key, keys, set())
        if any(depends_on_batch(each, of_random=False) for each in _tensors(values)):
            return False  # The usual case first: averages of layers, of which there are many.
        return not _differs(replica, key, keys, set(), of_random=False) and _differs(replica, key, keys, set())

    given = replica.given.items()
    return {key for key, (v, values) in given if v.synchronization == "auto" and is_of_first(key, v, values)}


def has_own_value(replica: Replica, key: int) -> bool:
    """Returns whether the step has given this replica a value of its own of a Keras variable, by its id."""
    is_own = key in replica.given and key not in replica.averaged
    return is_own and _differs(replica, key, _keys(replica), set())


def kept(replica: Replica) -> dict[int, Any]:
    """Returns the Keras variables that the step has given this replica a value of its own of, by their ids.

    Those that it computes from variables alone, such as averages of weights, are the same everywhere.
    """
    keys = _keys(replica)
    given = replica.given.items()
    return {key: v for key, (v, _) in given if key not in replica.averaged and _differs(replica, key, keys, set())}


def _keys(replica: Replica) -> dict[int, int]:
    """Returns the ids of the variables that the step assigns, by those of their handles."""
    return {id(handle): k for k, (v, _) in replica.given.items() for handle in _handles(replica, v)}


def _differs(replica: Replica, key: int, keys: dict[int, int], seen: set[int], of_random: bool = True) -> bool:
    """Returns whether what is assigned to a variable depends on the batch, on a metric, or on such a variable.

    It does if a branch or loop does in which the variable is assigned.

    Args:
        replica: the current replica.
        key: the id of the variable.
        keys: see `_keys`.
        seen: ids of variables that are being looked at.
        of_random: whether it counts if a value depends on random numbers.
    """
    if key not in replica.given or key in seen:
        return False
    if replica.given[key][0].synchronization == "on_read":  # The state of a metric: each replica has its own.
        return True

    def is_own(handle: Any) -> bool:
        handle = id(outermost(handle))
        return handle in own or (handle in keys and _differs(replica, keys[handle], keys, {*seen, key}, of_random))

    if tf.executing_eagerly():  # What a step assigns may depend on anything.
        return True
    own = {id(handle) for handle in replica.own_handles}
    values = replica.given[key][1]
    deciding = [deciding_inputs(graph, replica.graph) for _, graph in values]
    if None in deciding:
        return True
    tensors = [*_tensors(values), *tf.nest.flatten(deciding)]
    if any(depends_on_batch(each, of_random=of_random) for each in tensors):
        return True  # The usual case first: averages of layers, of which there are many. To look for handles takes long.
    return any(depends_on_batch(each, is_own, of_random) for each in tensors)


def _tensors(values: list[tuple[Any, Any]]) -> list[Any]:
    """Returns the tensors among values that are assigned in a traced step. The others are constants."""
    leaves = tf.nest.flatten([value for value, _ in values], expand_composites=True)  # Those of sharded variables have parts.
    return [each for each in leaves if tf.is_symbolic_tensor(each)]


def reads(replica: Replica, variables: Any, operations: Any) -> bool:
    """Returns whether one of these operations reads one of these Keras variables."""
    handles = {id(handle) for variable in variables for handle in _handles(replica, variable)}
    found = (each for each in operations if each.type in ("ReadVariableOp", "ResourceGather"))
    return any(id(outermost(each.inputs[0])) in handles for each in found)


def _handles(replica: Replica, variable: Any) -> list[Any]:
    """Returns the handles that the replica reads a variable by: several of a sharded one."""
    if isinstance(variable._value, tf.distribute.DistributedValues):
        return [_local(replica, variable).handle]
    handle = variable._value.handle
    return list(getattr(handle, "handles", [handle]))


def _local(replica: Replica, variable: Any) -> Any:
    return replica.strategy.experimental_local_results(variable._value)[replica.index]
