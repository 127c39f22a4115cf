"""Warns of a training step that replicas, each with its shard of a batch, compute differently from one process.

The replicas' results are means over the examples of a shard, and their weighted sum is that of the whole batch if every example
adds its own part. It does not if examples are compared with each other, as in contrastive losses, if the step computes with its
gradients, or if it adds up over the batch. Keras says nothing of a user's own code, so the step is tried out, before the first
update, on a few examples of the first batch. Nothing is updated or assigned.

With two parts a and b of these examples, and ab for a batch of both, each example adds its own part if

    step(ab) + step(ba) = step(aa) + step(bb),

where all four have the same positions, sizes and random numbers. The step is a mean if step(aa) = step(a); of a step that draws
random numbers, only the norm is compared.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.replica_context import Replica, entered
from tfdist.strategies.private_api import TensorFlowTrainer, is_stateful_operation
from tfdist.strategies.private_api.user_functions import without_optionals

MOST_EXAMPLES = 4
"""Examples in each of the two parts."""

_PROJECTIONS = 4
_TOLERANCE, _HALF_TOLERANCE = 0.005, 0.05
"""Differences that are more than rounding, of the norm of what is updated: in float32, also as TF32, and in half precision.
Measured on a CPU: 1e-6 and less where examples add up, 0.01 to 2 where they are compared."""

_SUM_GROWTH, _DRAWS, _MORE_DRAWS = 1.2, 8, 64
"""With random numbers: the norm of a mean of twice as many examples is 0.7 to 1 times as large, and 0.7 if all of it is random.
That of a sum is 1.4 to 2 times as large. Both are measured in so many draws, and if that looks like a sum, in more. Measured
with half of 16 units dropped out: 0.90 +- 0.24 in 8 draws, 0.86 +- 0.07 in 64."""

_LEAST_NORM = 1e-3
"""Tensors with a smaller norm, of the largest one, are left out: their differences may be rounding."""

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "Placeholder", "Assert", "NoOp")
_LOOKUPS = ("LookupTableFindV2", "LookupTableSizeV2", "HashTableV2")
_CONTAINERS = ("StatefulPartitionedCall", "If", "While", "Case")
_HARMLESS = frozenset((*_READS, *_LOOKUPS, *_CONTAINERS))
"""Stateful operations that a trial may run: they change nothing, and give the same result again."""

_OUTPUT = "an output"
"""The name of outputs in `Replica.recorded`. Other names are paths of variables."""

_CLIPS = ("clip_by_global_norm", "clip_by_norm")
"""Names that TensorFlow gives the operations of functions that clip."""

_log = logging.getLogger("tfdist")
_warned: set[str] = set()


class ShardCheck:
    """The check of one model. It is made once.

    Args:
        model: the Keras model.
        step: its `train_step`.
        strategy: the strategy.
        replicas: how many replicas share a batch.
        as_replica: returns a context in which the step is traced as that of one replica of this process.
        warns: whether this task logs what is found. All tasks have to try the step out, because a collective may be traced.
    """

    def __init__(
        self,
        model: Any,
        step: Callable[[Any], Any],
        strategy: Any,
        replicas: int,
        as_replica: Callable[[], contextlib.AbstractContextManager[Any]],
        warns: bool = True,
    ) -> None:
        self._model, self._strategy, self._replicas, self._warns = model, strategy, replicas, warns
        self._step = without_optionals(model, step)
        self._as_replica = as_replica
        # Code that runs eagerly counts its own calls, and a trial would be one more.
        self.is_open = _has_own_code(model) and not model.run_eagerly
        """Whether the check is still to be made."""
        self._names: Sequence[str | None] = ()  # Of what the step records.

    def run(self, examples: Any) -> None:
        """Tries the step out, and logs a warning that names the model if replicas compute another update than one process.

        A step that changes anything but Keras variables, or whose random numbers differ from call to call, cannot be tried out,
        and a warning says so. Batches that are not dense tensors of two examples or more are skipped.

        Args:
            examples: examples of the first batch, nested tensors.
        """
        self.is_open = False
        parts = _parts(examples)
        if parts is None:
            return
        try:
            self._try_out(*parts)
        except Exception as error:  # The real step shows the user's errors; an answer here is only wanted if there is one.
            _log.debug("the step of %s was not tried out on parts of a batch: %r", self._model.name, error)

    def _try_out(self, first: Any, second: Any) -> None:
        function = self._function(first)
        if not self._warns or not self._names:
            return
        nodes = _nodes(function)
        if changes := _changes(nodes):
            self._warn_of(function, changes)
            return
        batches = [_joined(*pair) for pair in ((first, second), (second, first), (first, first), (second, second))]
        ab, ba, aa, bb, a = ([value.numpy() for value in function(batch, tf.constant(0))] for batch in (*batches, first))
        tolerance = _HALF_TOLERANCE if "16" in keras.backend.standardize_dtype(self._model.compute_dtype) else _TOLERANCE
        if _large(ab[0] + ba[0] - aa[0] - bb[0], (ab[1] + ba[1] + aa[1] + bb[1]) / 4, tolerance):
            advice = (
                f"Let {type(self._model.optimizer).__name__} change them in update_step, which gets their sum over the replicas"
                if _has_own_updates(self._model.optimizer)
                else "Let the optimizer clip (global_clipnorm)"
            )
            self._warn(
                "what an example adds to an update depends on the other examples of its batch, or the step computes with its "
                "gradients. Compare examples in a loss function for compile that returns one number, of outputs with a row for "
                f"each example: it gets the whole batch. {advice}"
            )
            return
        if any("Random" in node.op for node in nodes):  # The numbers for 4 and for 8 examples differ.
            draws = (range(_DRAWS), range(_DRAWS, _DRAWS + _MORE_DRAWS))
            is_sum = all(self._measured_growth(function, batches[0], each) > _SUM_GROWTH for each in draws)
            assigned: list[str] = []
        else:
            sizes = [self._names[index] for index in _large(aa[0] - a[0], (aa[1] + a[1]) / 2, tolerance)]
            is_sum, assigned = None in sizes, [name for name in sizes if name not in (None, _OUTPUT)]
        if assigned:
            self._warn(
                f"it assigns {assigned[0]} something that is no mean over the examples, such as the examples themselves, their "
                "sum or their number. Every replica has its own, and the mean of these counts"
            )
        elif is_sum:
            self._warn(
                "an update depends on the number of examples, as that of a sum does, and every replica has a part of them. "
                "Compute means over the examples"
            )
        elif any(name in node.name for node in nodes for name in _CLIPS):
            self._warn("it clips its gradients, which are those of a shard. Let the optimizer clip (global_clipnorm, clipnorm)")

    def _measured_growth(self, function: Callable[[Any, Any], Any], batch: Any, draws: Sequence[int]) -> float:
        """Returns the norm of updates of a whole batch over that of updates of its half.

        Both are means over draws of random numbers, each with another order of the examples.
        """
        updates = [index for index, name in enumerate(self._names) if name is None]
        squares = []
        for draw in draws:
            whole = _mapped(lambda v, k=draw: tf.roll(v, k, axis=0), batch)
            half = _mapped(lambda v: v[: v.shape[0] // 2], whole)
            results = [function(each, tf.constant(draw)) for each in (whole, half)]
            squares.append([np.sum(norms.numpy()[updates] ** 2) for _, norms in results])
        large, small = np.sqrt(np.mean(squares, axis=0))
        return float(large / small) if small else 1.0

    def _warn_of(self, function: Any, changes: set[str]) -> None:
        """Logs a warning, once for each model, that its step cannot be tried out, and why."""
        if f"{self._model.name}/unchecked" in _warned:
            return
        _warned.add(f"{self._model.name}/unchecked")
        if names := _assigned_variables(function):
            what = (
                f"it assigns the tf.Variable {names[0]}, of which every replica keeps its own value. Make it with "
                "add_weight or keras.Variable: after each step the replicas get the mean of what they have assigned"
            )
        elif random := sorted(each for each in changes if "Random" in each or each == "Multinomial"):
            what = f"it draws random numbers that no seed fixes ({', '.join(random)}). Draw them with keras.random"
        else:
            what = f"it runs {', '.join(sorted(changes))}"
        _log.warning(
            "it was not checked whether the training of %s (%s) equals that in one process: %s. It does if an update is a mean "
            "to which every example of a batch adds its own part, for %d replicas share each batch",
            *(self._model.name, type(self._model).__name__, what, self._replicas),
        )

    def _warn(self, what: str) -> None:
        if self._model.name not in _warned:
            _warned.add(self._model.name)
            _log.warning(
                "the training of %s (%s) differs from that in one process, because %d replicas share each batch: %s",
                *(self._model.name, type(self._model).__name__, self._replicas, what),
            )

    def _function(self, example: Any) -> Any:
        """Returns a function of a batch and of the number of a draw that returns projections and norms of what a step updates.

        Draws with other numbers have other random numbers.
        """

        def trial(batch: Any, draw: Any) -> tuple[tf.Tensor, tf.Tensor]:
            recorded: list[tuple[str | None, Any]] = []
            state = Replica(self._strategy, 0, tf.constant(1.0), recorded=recorded, draw=draw)
            with self._as_replica(), entered(state), _Frozen(self._model):
                if _has_own_step(self._model) or _has_own_updates(self._model.optimizer):
                    self._step(batch)
                else:
                    _compute_loss(self._model, batch, recorded)
                self._names = [name for name, _ in recorded]
                return _summary([value for _, value in recorded])

        signature = _mapped(lambda v: tf.TensorSpec([None, *v.shape[1:]], v.dtype), example)
        return tf.function(trial, autograph=False).get_concrete_function(signature, tf.TensorSpec([], tf.int32))


def _has_own_step(model: Any) -> bool:
    return type(model).train_step is not TensorFlowTrainer.train_step


def _has_own_updates(optimizer: Any) -> bool:
    """Returns whether an optimizer has code of the user's that gets the gradients of a shard, before they are added up."""
    owners = [next((c for c in type(optimizer).__mro__ if name in vars(c)), object) for name in ("apply", "apply_gradients")]
    return optimizer is not None and not all(map(_is_known, owners))


def _has_own_regularizer(layer: Any) -> bool:
    """Returns whether the outputs of a layer are regularized by code that may compare the examples."""
    regularizer = layer.activity_regularizer
    is_known = _is_known(regularizer if hasattr(regularizer, "__name__") else type(regularizer))
    return not is_known or isinstance(regularizer, keras.regularizers.OrthogonalRegularizer)


def _compute_loss(model: Any, batch: Any, recorded: list[tuple[str | None, Any]]) -> None:
    """Adds the outputs of a model and its loss to `recorded`, as Keras' `train_step` computes them.

    That step needs no more than these to be means. Tracing it whole takes several times as long. Outputs that are linear in the
    batch, as after a subtraction of its mean, show in their squares only.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    outputs = model(x, training=True) if model._call_has_training_arg else model(x)
    loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True)
    floats = [value for value in tf.nest.flatten(outputs) if isinstance(value, tf.Tensor) and value.dtype.is_floating]
    recorded += [(_OUTPUT, each) for value in floats for each in (value, value * value)]
    recorded.append((None, loss))


class _Frozen:
    """Lets layers that normalize over the batch use their moving statistics: `warn_of_normalization` names these layers."""

    def __init__(self, model: Any) -> None:
        self._layers = [layer for layer in _normalizations(model) if layer.trainable]

    def __enter__(self) -> None:
        for layer in self._layers:
            layer.trainable = False

    def __exit__(self, *_: Any) -> None:
        for layer in self._layers:
            layer.trainable = True


def warn_of_normalization(model: Any, replicas: int) -> None:
    """Logs a warning, once for each model, that names its layers that normalize over the shard of a replica.

    Args:
        model: the Keras model.
        replicas: how many replicas share a batch.
    """
    layers = [layer.name for layer in _normalizations(model) if layer.trainable and not layer.synchronized]
    if layers and f"{model.name}/normalization" not in _warned:
        _warned.add(f"{model.name}/normalization")
        shown = ", ".join(layers[:3]) + (f" and {len(layers) - 3} more layers" if len(layers) > 3 else "")
        _log.warning(
            "the training of %s differs from that in one process, because %d replicas share each batch: BatchNormalization "
            "(%s) normalizes each replica's part. BatchNormalization(synchronized=True) normalizes the whole batch",
            *(model.name, replicas, shown),
        )


def _normalizations(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]


def _has_own_code(model: Any) -> bool:
    """Returns whether a model runs code that is not Keras': what Keras' own layers and losses compute is known."""
    operations = getattr(model, "operations", ())
    losses = tf.nest.flatten(getattr(model, "loss", None))
    return (
        _has_own_step(model)
        or _has_own_updates(model.optimizer)
        or any(map(_has_own_regularizer, model._flatten_layers()))
        or type(model).compute_loss is not TensorFlowTrainer.compute_loss
        or any(not isinstance(operation, keras.Layer) for operation in operations)  # `keras.ops` in a functional model.
        or any(not _is_known(type(layer)) or isinstance(layer, keras.layers.Lambda) for layer in model._flatten_layers())
        or any(not _is_known(loss if callable(loss) and hasattr(loss, "__name__") else type(loss)) for loss in losses)
        or any(_name_of(loss).lower() == "circle" for loss in losses)  # The one loss of Keras that compares examples.
    )


def _name_of(loss: Any) -> str:
    """Returns the name of a loss of `compile`: of a function, of a class, of the class of an object, or as a string."""
    return loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)


def _is_known(code: Any) -> bool:
    """Returns whether a class or a function is of Keras or built in, as the name of a loss."""
    return getattr(code, "__module__", "").partition(".")[0] in ("keras", "builtins")


def _parts(batch: Any) -> tuple[Any, Any] | None:
    """Returns two batches of as many examples each, with weights of 1; None if `batch` cannot be taken apart."""
    if isinstance(batch, tuple) and len(batch) == 3:
        # Weights of examples are no property of the step. Those of a batch and of its parts have other sums.
        batch = (*batch[:2], _mapped(tf.ones_like, batch[2]))
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    if not leaves or not all(isinstance(leaf, tf.Tensor) and leaf.shape.rank for leaf in leaves):
        return None
    size = min(int(min(leaf.shape[0] for leaf in leaves)) // 2, MOST_EXAMPLES)
    if not size:
        return None
    first, second = (_mapped(lambda v, b=begin: v[b : b + size], batch) for begin in (0, size))
    return first, second


def _mapped(function: Callable[..., Any], *batches: Any) -> Any:
    return tf.nest.map_structure(lambda *v: None if v[0] is None else function(*v), *batches)


def _joined(first: Any, second: Any) -> Any:
    return _mapped(lambda a, b: tf.concat([a, b], axis=0), first, second)


def _summary(recorded: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns projections of tensors, `[tensors, projections]`, and their norms, `[tensors]`.

    The projection of a sum is the sum of the projections. They are compared in place of the tensors, which may fill a device.
    """
    flat = [tf.reshape(tf.cast(v.values if isinstance(v, tf.IndexedSlices) else v, tf.float32), [-1]) for v in recorded]
    if not flat:
        return tf.zeros([0, _PROJECTIONS]), tf.zeros([0])
    projections = []
    for vector in flat:
        places = tf.cast(tf.range(tf.size(vector)) % 8191, tf.float32)
        projections.append([tf.reduce_sum(vector * tf.cos(places * (1.0 + 0.7 * k) + k)) for k in range(_PROJECTIONS)])
    return tf.convert_to_tensor(projections), tf.stack([tf.norm(vector) for vector in flat])


def _large(differences: np.ndarray, norms: np.ndarray, tolerance: float) -> list[int]:
    """Returns the numbers of the tensors whose differences are more than rounding; none if a step gives no finite numbers."""
    if not np.isfinite(differences).all():
        return []
    counted = norms > _LEAST_NORM * norms.max(initial=0)
    return [int(index) for index in np.flatnonzero(counted & (np.abs(differences).max(axis=1) > tolerance * norms))]


def _nodes(function: Any) -> list[Any]:
    """Returns the operations of a traced function and of the functions that it calls, as `NodeDef`s."""
    definition = function.graph.as_graph_def()
    return [*definition.node, *(node for each in definition.library.function for node in each.node_def)]


def _changes(nodes: Sequence[Any]) -> set[str]:
    """Returns the types of operations that may change something, or give another result when they run again."""
    return {node.op for node in nodes if node.op not in _HARMLESS and is_stateful_operation(node.op)}


def _assigned_variables(function: Any) -> list[str]:
    """Returns the names of the variables that a traced function assigns in operations of its own."""
    handles = {id(inner): outer for outer, inner in function.graph.captures}
    names = {id(variable.handle): variable.name for variable in function.graph.variables}
    operations = [each for each in function.graph.get_operations() if "Assign" in each.type or "Scatter" in each.type]
    found = [names.get(id(handles.get(id(each.inputs[0])))) for each in operations if each.inputs]
    return [name.partition(":")[0] for name in found if name is not None]
