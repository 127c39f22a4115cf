"""What a trial of a step (shard_check.py) is made of: parts of a batch, numbers of its updates, operations of a function."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks.own_code import has_own_metrics
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.same_rows import each_once
from tfdist.strategies.private_api import is_stateful_operation
from tfdist.strategies.private_api.ring_sums import OF_REPLICA

MOST_EXAMPLES = 4
"""Examples in each of the two parts."""

_PROJECTIONS = 4

LEAST_NORM, LEAST_CHANGE = 1e-3, 1e-6
"""Tensors with a smaller norm, of the largest one, are left out: their differences may be rounding. So are changes of
variables that a step assigns itself, such as moving averages, which may be small beside gradients."""

OUTPUT = "an output"
"""The name of outputs in `Replica.recorded`. Other names are paths of variables."""

_ROUNDINGS = 1000.0
"""How many times the rounding of a variable's value is added to the norm of its change."""

_READS = ("ReadVariableOp", "VariableShape", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "Placeholder", "NoOp")
_RAISES = ("Assert", "CheckNumerics", "CheckNumericsV2")  # `keras.ops.cholesky` runs CheckNumerics.
_LOOKUPS = ("LookupTableFindV2", "LookupTableSizeV2", "HashTableV2")
_MAKES_EMPTY = ("Empty",)  # As `keras.ops.ctc_loss`, which then fills it. TensorFlow calls it stateful.
_OF_GPUS = ("CudnnRNNV3", "CudnnRNNBackpropV3")  # Of Keras' recurrent layers. They draw for a dropout, which Keras leaves at 0.
_CONTAINERS = ("StatefulPartitionedCall", "If", "While", "Case")
_HARMLESS = frozenset((*_READS, *_RAISES, *_LOOKUPS, *_MAKES_EMPTY, *_OF_GPUS, *_CONTAINERS))
"""Stateful operations that a trial may run: they change nothing, and give the same result again."""

_OF_VARIABLES = ("initial_value", "trainable", "name", "dtype", "aggregation", "synchronization", "shape")


@contextlib.contextmanager
def variables_of(strategy: Any) -> Iterator[None]:
    """Creates variables that a step makes, such as those of a metric with its first batch, as in the scope of the strategy.

    Otherwise they would be variables of the trial, which replicas share, and each could lose what another one counts.
    """

    def in_scope(arguments: dict[str, Any]) -> Any:
        with strategy.scope():
            return tf.Variable(**arguments)

    def create(next_creator: Any, **kwargs: Any) -> Any:
        with ThreadPoolExecutor(1) as thread:  # The thread is in no function and in no replica.
            return thread.submit(in_scope, {name: kwargs[name] for name in _OF_VARIABLES if name in kwargs}).result()

    with tf.variable_creator_scope(create):
        yield


class Assigned:
    """Stands for the value of a variable that a trial would assign.

    A gradient with respect to the value that is read counts as one with respect to the variable.

    Args:
        variable: the variable of TensorFlow.
        value: what the trial would assign, a tensor.
    """

    def __init__(self, variable: Any, value: Any) -> None:
        self._variable, self._value = variable, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._variable, name)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        read = tf.convert_to_tensor(self._variable)
        return tf.cast(read + tf.stop_gradient(tf.cast(self._value, read.dtype) - read), dtype or read.dtype, name)


def _operator(name: str) -> Callable[..., Any]:
    return lambda assigned, *operands: getattr(tf.convert_to_tensor(assigned), name)(*operands)


for _name in tf.Tensor.OVERLOADABLE_OPERATORS:
    setattr(Assigned, _name, _operator(_name))


@contextlib.contextmanager
def released(replica: Replica) -> Iterator[None]:
    """Gives variables their values back, in whose place the step of a replica reads what it would assign."""
    try:
        yield
    finally:
        for variable, value in replica.held.values():
            variable._value = value
        replica.held.clear()


def parts(batch: Any) -> tuple[Any, Any] | None:
    """Returns two batches of as many examples each; None if `batch` cannot be taken apart."""
    if not are_dense(batch):
        return None
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    size = min(int(min(leaf.shape[0] for leaf in leaves)) // 2, MOST_EXAMPLES)
    if not size:
        return None
    first, second = (mapped(lambda v, b=begin: v[b : b + size], batch) for begin in (0, size))
    return first, second


def are_dense(batch: Any) -> bool:
    """Returns whether all tensors of a batch are dense and have rows."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    return bool(leaves) and all(isinstance(leaf, tf.Tensor) and leaf.shape.rank for leaf in leaves)


def count(batch: Any) -> tf.Tensor:
    """Returns the number of examples of a batch of dense tensors, an integer scalar."""
    return tf.shape(next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None))[0]


def mapped(function: Callable[..., Any], *batches: Any) -> Any:
    """Returns what a function returns for each tensor of batches of the same structure; None stays None."""
    return tf.nest.map_structure(lambda *v: None if v[0] is None else function(*v), *batches)


def joined(first: Any, second: Any) -> Any:
    """Returns a batch of the examples of two batches."""
    return mapped(lambda a, b: tf.concat([a, b], axis=0), first, second)


def other_parts(first: Any, second: Any) -> tuple[Any, Any]:
    """Returns the examples of two parts in other parts: every second one."""
    both = joined(first, second)
    return mapped(lambda v: v[::2], both), mapped(lambda v: v[1::2], both)


def padded(part: Any, has_weights: bool) -> Any:
    """Returns the examples with padding in place of their second half: zeros in tensors of integers and truth values.

    A mask may leave as much of each of the first examples, and then a mean over what it leaves looks like a mean over examples.

    Args:
        part: a batch of dense tensors.
        has_weights: whether it is a tuple of inputs, targets and weights. Weights become zeros, too, or half if an example has
            one.
    """

    def without_end(leaf: tf.Tensor) -> tf.Tensor:
        is_kept = tf.range(leaf.shape[1]) < (leaf.shape[1] + 1) // 2
        return tf.where(tf.reshape(is_kept, [-1] + [1] * (leaf.shape.rank - 2)), leaf, tf.zeros_like(leaf))

    def of_tokens(leaf: tf.Tensor) -> tf.Tensor:
        return without_end(leaf) if leaf.shape.rank > 1 and (leaf.dtype.is_integer or leaf.dtype.is_bool) else leaf

    def of_weights(leaf: tf.Tensor) -> tf.Tensor:
        return without_end(leaf) if leaf.shape.rank > 1 else tf.cast(leaf / 2, leaf.dtype)

    if not has_weights:
        return mapped(of_tokens, part)
    return (*mapped(of_tokens, part[:2]), mapped(of_weights, part[2]))


def compared(
    function: Callable[[Any, Any], Any], first: Any, second: Any, has_weights: bool
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Returns how much each result of a step depends on which examples are together in a batch.

    Args:
        function: a function of a batch and the number of a draw that returns a `summary`.
        first: a part of a batch.
        second: another one, of as many examples.
        has_weights: see `padded`.

    Returns:
        Differences of projections, which are zero where every example adds its own part; norms; what it gives for the first
        part twice.
    """
    ab, ba, aa, bb = _in_pairs(function, first, second)
    differences, norms = ab[0] + ba[0] - aa[0] - bb[0], (ab[1] + ba[1] + aa[1] + bb[1]) / 4
    # What is counted over a batch, as the examples of a class, may be alike in two parts. It hardly is in others, too.
    padding = first, padded(second, has_weights)
    for pair, refused in ((other_parts(first, second), ()), (padding, (tf.errors.OpError,))):  # A step may refuse padding.
        with contextlib.suppress(*refused):
            cd, dc, cc, dd = (projections for projections, _ in _in_pairs(function, *pair))
            others = cd + dc - cc - dd
            differences = np.where(np.abs(others) > np.abs(differences), others, differences)
    return differences, norms, aa


def _in_pairs(function: Callable[[Any, Any], Any], first: Any, second: Any) -> list[list[np.ndarray]]:
    """Returns what a step gives for batches of two parts: ab, ba, aa and bb."""
    pairs = ((first, second), (second, first), (first, first), (second, second))
    return [[value.numpy() for value in function(joined(*pair), tf.constant(0))] for pair in pairs]


def summary(recorded: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns projections of tensors, `[tensors, projections]`, and their norms, `[tensors]`.

    The projection of a sum is the sum of the projections. They are compared in place of the tensors, which may fill a device.
    """
    numbers = tf.stack([_numbers(value) for value in recorded]) if recorded else tf.zeros([0, 1 + _PROJECTIONS])
    return numbers[:, 1:], tf.sqrt(numbers[:, 0])


def _numbers(value: Any, first: Any = 0) -> tf.Tensor:
    """Returns the square of the norm of a tensor, and its projections, [1 + projections], given the place of its first number.

    Of one in parts (`model_parallel`) it is the sum of the parts', each computed where the part is.
    """
    if isinstance(value, tf.experimental.ExtensionType):
        size = tf.size(value.parts[0])
        return value.added(lambda number, part: _numbers(part, size * (value.first + number)))
    vector, numbers = _with_places(value)
    with tf.init_scope():
        projected = _projected.get_concrete_function()  # A call of the `tf.function` would be inlined (user_functions.py).
    return projected(vector, numbers + tf.cast(first, tf.int64))


# Traced once and called for each tensor, because tracing all of this for each of a hundred gradients took seconds.
@tf.function(  # type: ignore[untyped-decorator]
    input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.int64)], autograph=False
)
def _projected(vector: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Returns the square of the norm of a vector, [n], and its projections, given the places of its numbers, [n]."""
    k = np.arange(_PROJECTIONS, dtype=np.float32)[:, None]
    waves = tf.cos(tf.cast(numbers % 8191, tf.float32) * (1.0 + 0.7 * k) + k)
    return tf.concat([[tf.reduce_sum(vector * vector)], tf.reduce_sum(vector * waves, axis=1)], axis=0)


def _with_places(value: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the numbers of a tensor, [n], and their places in it, [n]; of rows of a table only what these rows have."""
    if not isinstance(value, tf.IndexedSlices):
        vector = tf.reshape(tf.cast(tf.convert_to_tensor(value), tf.float32), [-1])
        return vector, tf.range(tf.size(vector, tf.int64))
    slices = each_once(value)  # Rows that two examples look up are one update.
    rows = tf.reshape(tf.cast(slices.values, tf.float32), [tf.size(slices.indices), -1])
    width = tf.shape(rows, tf.int64)[1]
    places = tf.cast(slices.indices, tf.int64)[:, None] * width + tf.range(width)
    return tf.reshape(rows, [-1]), tf.reshape(places, [-1])


def change(value: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """Returns a vector of what a step changes in a variable. A moving average changes little: its value would hide it.

    One more number keeps the rounding of the value from counting as a change. It is the same for all batches.
    """
    rounding = _ROUNDINGS * np.finfo(before.dtype.as_numpy_dtype).eps if before.dtype != tf.bfloat16 else 1.0
    difference = tf.cast(value, tf.float32) - tf.cast(before, tf.float32)
    return tf.concat([tf.reshape(difference, [-1]), [float(rounding) * tf.norm(tf.cast(before, tf.float32))]], axis=0)


def large(differences: np.ndarray, norms: np.ndarray, tolerance: float, least: Any = LEAST_NORM) -> list[int]:
    """Returns the numbers of the tensors whose differences are more than rounding; none if a step gives no finite numbers.

    Args:
        differences: of the projections of each tensor.
        norms: of each tensor.
        tolerance: of differences, as a part of the norm.
        least: the smallest norm that counts, as a part of the largest one, of all tensors or of each.
    """
    if not np.isfinite(differences).all():
        return []
    counted = norms > least * norms.max(initial=0)
    return [int(index) for index in np.flatnonzero(counted & (np.abs(differences).max(axis=1) > tolerance * norms))]


def nodes_of(function: Any) -> list[Any]:
    """Returns the operations of a traced function and of the functions that it calls, as `NodeDef`s."""
    definition = function.graph.as_graph_def()
    return [*definition.node, *(node for each in definition.library.function for node in each.node_def)]


def changing_operations(nodes: Sequence[Any]) -> set[str]:
    """Returns the types of operations that may change something, or give another result when they run again."""
    # All tasks of one replica run the trial (`model_parallel`). Those of others may run it another number of times.
    own = (node for node in nodes if node.op not in _HARMLESS and OF_REPLICA not in node.name)
    return {node.op for node in own if is_stateful_operation(node.op)}


def what_changes(function: Any, changes: set[str], updates: int) -> str:
    """Returns why a traced function with operations of these types cannot be tried out, given the number of its updates."""
    if not updates and any("Apply" in each or "Assign" in each for each in changes):
        return (
            "it changes variables itself, not by the apply of an optimizer, and every replica does so for its own examples. "
            "Call apply, or assign variables of Keras (add_weight, keras.Variable): after each step the replicas get the mean "
            "of what they have assigned"
        )
    if names := assigned_variables(function):
        return (
            f"it assigns the tf.Variable {names[0]}, of which every replica keeps its own value. Make it with "
            "add_weight or keras.Variable: after each step the replicas get the mean of what they have assigned"
        )
    if random := sorted(each for each in changes if "Random" in each or each == "Multinomial"):
        return f"it draws random numbers that no seed fixes ({', '.join(random)}). Draw them with keras.random"
    return f"it runs {', '.join(sorted(changes))}"


def assigned_variables(function: Any) -> list[str]:
    """Returns the names of the variables that a traced function assigns in operations of its own."""
    handles = {id(inner): outer for outer, inner in function.graph.captures}
    names = {id(variable.handle): variable.name for variable in function.graph.variables}
    operations = [each for each in function.graph.get_operations() if "Assign" in each.type or "Scatter" in each.type]
    found = [names.get(id(handles.get(id(each.inputs[0])))) for each in operations if each.inputs]
    return [name.partition(":")[0] for name in found if name is not None]


def compute_loss(model: Any, batch: Any, recorded: list[tuple[str | None, Any]]) -> Any:
    """Adds the outputs of a model and its loss to `recorded`, as Keras' `train_step` computes them. Returns logs of the user's.

    That step needs no more than these to be means. Tracing it whole takes several times as long.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    outputs = model(x, training=True) if model._call_has_training_arg else model(x)
    loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True)
    recorded += [*recorded_outputs(outputs), (None, loss)]
    return model.compute_metrics(x, y, outputs, sample_weight) if has_own_metrics(model) else None


def recorded_outputs(outputs: Any) -> list[tuple[str | None, Any]]:
    """Returns the floats among the outputs of a model as what a step records.

    Outputs that are linear in the batch, as after a subtraction of its mean, show in their squares only. One number for a batch
    is none of an example (replicas/predicted_numbers.py).
    """
    floats = [
        value
        for value in tf.nest.flatten(outputs)
        if isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank != 0
    ]
    return [(OUTPUT, each) for value in floats for each in (value, value * value)]


def compute_outputs(model: Any, batch: Any) -> list[tuple[str | None, Any]]:
    """Returns the outputs of a model, as Keras' `test_step` computes them, as what a step records."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    return recorded_outputs(model(x, training=False) if model._call_has_training_arg else model(x))
