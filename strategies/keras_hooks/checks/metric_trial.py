"""What a step that is tried out adds to its metrics: whether replicas, each with its shard, add the same as one process.

The states of the replicas' metrics are added up. That is exact if every example adds its own part to a state. A trial
(shard_check.py) finds what a metric of the user's adds instead:

* a number of the batch, such as the mean of its examples or 1: the state grows as much with twice as many examples. From then
  on each replica adds its share of the number, so that the replicas together add the mean over the examples;
* a sum over the examples, given to a `keras.metrics.Mean`, which counts by the replica's share: each replica adds all of its
  sum;
* a number that compares the examples, such as the F1 score of a batch: that of a shard. A warning names the metric.
"""

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks import metric_sums
from tfdist.strategies.keras_hooks.checks.growth import SUM_TOLERANCE, is_of_sum
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning

_SUM_GROWTH = 1.41
"""Of a step that draws random numbers: a sum over twice as many examples is about 2 times as large, a mean as large."""

_UNKNOWN, _AS_IT_IS, _NUMBER, _SUM = -1.0, 0.0, 1.0, 2.0
"""What a step adds to a variable: its change, a number of a batch, or to a mean the sum over the examples of a batch."""

_log = logging.getLogger("tfdist")
_by_share: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_of_sums: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def record(replica: Replica, variable: Any, value: Any) -> None:
    """Records what a trial adds to a variable of a metric.

    Args:
        replica: the current replica.
        variable: the Keras variable.
        value: what the step assigns. The trial assigns nothing, so all of it is a change of the value before the step.
    """
    replica.counted.append((variable, tf.cast(value, tf.float32) - tf.cast(variable.value, tf.float32)))


def changes(replica: Replica) -> list[tuple[Any, Any]]:
    """Returns what a trial adds to each variable of a metric that it assigns, as (variable, change); 0 if that is not known.

    It is not if the step assigns the variable in a branch or a loop.
    """
    graph = tf.compat.v1.get_default_graph()
    by_id: dict[int, list[Any]] = {}
    for variable, change in replica.counted:
        by_id.setdefault(id(variable), [variable]).append(change)
    return [
        (variable, tf.add_n(own) if all(change.graph is graph for change in own) else tf.constant(0.0))
        for variable, *own in by_id.values()
    ]


def settle(replica: Replica, metric: Any) -> None:
    """Notes that a metric of Keras counts the number of a batch rightly by itself, on several replicas too."""
    replica.settled.update(id(variable) for variable in metric.variables)


def counted(replica: Replica, variable: Any, value: Any) -> Any:
    """Returns what a replica assigns: the old value plus its share of a number of a batch, or `value` as it is."""
    if replica.share is None or id(variable) not in _by_share or metric_sums.is_zero(value):
        return value
    old = variable.value
    return old + (tf.cast(value, old.dtype) - old) * tf.cast(replica.share, old.dtype)


def gets_sums(metric: Any) -> bool:
    """Returns whether a `keras.metrics.Mean` gets the sum over the examples of a batch as one number."""
    return id(metric.total) in _of_sums


class Judgement:
    """What is to be said of the metrics of a model."""

    def __init__(self, model: Any, replicas: int) -> None:
        self._model, self._replicas = model, replicas
        self._kinds: dict[int, float] = {}  # Of what a step adds to each variable, by its id.
        self._warnings: list[str] = []

    def look_at(
        self, variables: Sequence[Any], settled: Iterable[int], compares: Sequence[bool], growth: Sequence[float | None]
    ) -> None:
        """Looks at what the trial has found.

        Args:
            variables: the variables that the step assigns.
            settled: the ids of those that Keras' metrics count rightly.
            compares: for each, whether what an example adds depends on the others of its batch.
            growth: for each, how many times as much is added with each example twice; None if nothing is known.
        """
        places = {id(variable): place for place, variable in enumerate(variables)}
        rightly = set(settled)
        for metric in leaves(self._model):
            own = [places[id(variable)] for variable in metric.variables if id(variable) in places]
            for place in own:
                if growth[place] is not None:
                    self._kinds[id(variables[place])] = _AS_IT_IS  # A step of the model's own tests may add something else.
            if (total := self._sum_by_examples(metric, places, growth)) is not None:
                self._kinds[id(variables[total])] = _SUM
                own.remove(total)
            if any(compares[place] for place in own):
                self._warnings.append(
                    f"what an example adds to the metric {metric.name} depends on the other examples of its batch. Keep sums "
                    "over the examples and compute with them in result(), or pass a metric function that returns one number, "
                    "of its arguments alone: it gets the whole batch"
                )
            for place in own:
                if is_of_sum(growth[place]) and not compares[place] and id(variables[place]) in rightly:
                    self._kinds[id(variables[place])] = _SUM
            own = [place for place in own if id(variables[place]) not in rightly]
            numbers = [place for place in own if (growth[place] or _SUM_GROWTH) < _SUM_GROWTH]
            if not numbers or any(growth[place] is None for place in own):
                continue  # Of a state to which the trial adds 0 nothing is known.
            if all(tf.as_dtype(variables[place].dtype).is_floating for place in numbers):
                self._kinds.update((id(variables[place]), _NUMBER) for place in numbers)
            else:
                self._warnings.append(
                    f"the metric {metric.name} counts a batch once for each replica, in a variable of integers. Make it of "
                    'floats (dtype="float32")'
                )

    def _sum_by_examples(self, metric: Any, places: dict[int, int], growth: Sequence[float | None]) -> int | None:
        """Returns the place of the total of a mean that gets sums over the examples, each with their number as weight."""
        if not isinstance(metric, keras.metrics.Mean):
            return None
        total, count = (places.get(id(variable)) for variable in (metric.total, metric.count))
        of_total, of_count = (0.0 if place is None else growth[place] or 0.0 for place in (total, count))
        return total if np.allclose((of_total, of_count), (4.0, 2.0), rtol=SUM_TOLERANCE) else None

    def apply(self, of_chief: Callable[[Any], Any], warns: bool) -> None:
        """Makes the replicas count so. All tasks have to call it.

        Args:
            of_chief: takes numbers and returns those of the first task: each has seen other examples.
            warns: whether this task logs what was found.
        """
        if not (own := variables_of(self._model)):
            return
        found = of_chief(np.array([self._kinds.get(id(variable), _UNKNOWN) for variable in own]))
        kinds = [(variable, kind) for variable, kind in zip(own, found, strict=True) if kind != _UNKNOWN]
        for variables, counted in ((_by_share, _NUMBER), (_of_sums, _SUM)):
            for variable, kind in kinds:
                if kind == counted:
                    variables[id(variable)] = variable
                else:
                    variables.pop(id(variable), None)
        for reason in self._warnings if warns else ():
            if is_first_warning(self._model, reason):
                _log.warning(
                    "a metric of %s (%s) differs from that in one process, because %d replicas share each batch: %s",
                    *(self._model.name, type(self._model).__name__, self._replicas, reason),
                )


def leaves(model: Any) -> list[Any]:
    """Returns each metric that a model holds once, and those of `compile` one by one.

    The attribute `metrics` of the model lacks those of a model inside it, and may be a property that leaves out others.
    """
    held = [*model.metrics, *(metric for layer in model._flatten_layers() for metric in keras.Layer.metrics.fget(layer))]
    found = [leaf for metric in held for leaf in getattr(metric, "metrics", None) or [metric]]
    return list({id(leaf): leaf for leaf in found}.values())


def variables_of(model: Any) -> list[Any]:
    """Returns the Keras variables of these metrics, those of the model's `metrics_variables` first."""
    found = [*model.metrics_variables, *(variable for leaf in leaves(model) for variable in leaf.variables)]
    return list({id(variable): variable for variable in found}.values())


def reads_another(function: Any, model: Any, strategy: Any) -> bool:
    """Returns whether a traced step reads a number that is neither trained nor a metric's, such as the weight of a loss."""
    of_metrics = {id(each) for variable in variables_of(model) for each in strategy.experimental_local_results(variable.value)}
    numbers = [each for each in function.graph.variables if each.shape.rank == 0 and not each.trainable]
    return any(id(each) not in of_metrics for each in numbers)
