"""What Keras calls as `train_function` and `test_function` under a ParameterServer strategy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies._private import StatelessScope
from tfdist.strategies.feed import Feed
from tfdist.strategies.group_step import GroupStep
from tfdist.strategies.steps_under_way import CHIEF, Execution, StepsUnderWay
from tfdist.strategies.worker_local import WorkerLocalVariable

MOST_METRIC_VALUES = 65536
"""Metrics that hold more numbers than this (a confusion matrix of many classes) are not sent to the chief after every step."""


class KerasSteps:
    """Gives each group the next `steps_per_execution` batches as soon as it is free; returns once per execution that is done.

    The logs are those of all steps done so far in this epoch, over all workers. A `train_step` whose logs are other than the
    model's metrics gets what it returned.
    """

    def __init__(self, strategy: Any, model: Any, step: Callable[..., Any], under_way: StepsUnderWay) -> None:
        self._model = model
        self._under_way = under_way
        self._metrics: list[Any] = []  # Keras variables of the metrics, in the order in which a step sends them.
        self._log_shapes: dict[str, tuple[int, ...]] = {}
        self._step = GroupStep(strategy, model, step, self._on_replica, self._collect)
        self._result_of_metrics: Any = None
        self._states: dict[int, Any] = {}
        self.logs: Any = None

    # In the function that a group runs.

    def _on_replica(self, outputs: Any) -> tuple[Any, Any]:
        """The metrics' variables and the logs of one replica, each as a float64 vector."""
        model = self._model
        metrics = {id(v): v for metric in model.metrics for v in metric.variables}
        worker_local = all(isinstance(v._value, WorkerLocalVariable) for v in metrics.values())
        size = sum(v.shape.num_elements() for v in metrics.values())
        is_logs_of_metrics = isinstance(outputs, dict) and outputs.keys() == model.get_metrics_result().keys()
        states: list[Any] = []
        self._metrics = []
        if worker_local and size <= MOST_METRIC_VALUES and is_logs_of_metrics and model.metrics:
            self._metrics = list(metrics.values())
            states = [tf.convert_to_tensor(variable) for variable in self._metrics]
            outputs = {}
        elif not isinstance(outputs, dict):
            outputs = {"loss": outputs}
        flat = tf.nest.flatten(outputs)
        self._log_structure = outputs
        self._log_shapes = [tuple(tf.convert_to_tensor(value).shape) for value in flat]
        return _vector(states), _vector(flat)

    @staticmethod
    def _collect(replicas: list[Any], shares: list[Any]) -> Any:
        """The sum of the replicas' metrics and the mean of their logs, one after the other."""
        states, logs = zip(*replicas, strict=True)
        if len(replicas) == 1:
            return tf.concat([states[0], logs[0]], axis=0)
        mean = tf.add_n([value * tf.cast(share, tf.float64) for value, share in zip(logs, shares, strict=True)])
        return tf.concat([tf.add_n(list(states)), mean], axis=0)

    # On the chief.

    def __call__(self, iterator: Any) -> Any:
        """Keeps the groups busy with batches of `iterator`; returns logs. Raises StopIteration when all of them are done."""
        if not isinstance(iterator, Feed):  # train_on_batch, test_on_batch: a generator of one batch
            self.begin()
            execution = self._schedule([tf.nest.map_structure(_tensor, next(iterator))])
            self._under_way.result_of(execution)
            return self._done(execution)
        if not len(self._under_way):
            iterator.begin_epoch_if_over()
        while len(self._under_way) < self._under_way.limit:
            batches = iterator.take(self._model.steps_per_execution)
            if not batches:
                break
            self._schedule(batches)
        done = self._under_way.wait_for_any()
        if done is None:
            raise StopIteration
        return self._done(done)

    def begin(self) -> None:
        """Before metrics start anew: ends what is under way and forgets what it gave."""
        self._under_way.settle()
        self._states.clear()
        self.logs = None

    def finish(self) -> Any:
        """At the end of an epoch: waits for what is under way; returns the logs."""
        while (done := self._under_way.wait_for_any()) is not None:
            self._done(done)
        if self._states and self._metrics:
            # Keras reads each metric now: the sums are known already.
            for variable, value in zip(self._metrics, self._sums(), strict=True):
                variable._value.known_sum = tf.constant(value, variable._value.dtype)
        return self.logs

    def _schedule(self, batches: list[Any]) -> Execution:
        calls = [self._step.prepare(run) for run in _runs_of_equal_shapes(batches)]
        for variable in self._metrics:
            variable._value.known_sum = None

        def run(group: int) -> Any:
            for call in calls:
                output = call(group)
            return output

        return self._under_way.schedule(run)

    def _done(self, execution: Execution) -> Any:
        vector = execution.result.numpy()
        size = sum(variable.shape.num_elements() for variable in self._metrics)
        self._states[execution.group] = vector[:size]
        if self._metrics:
            if self._result_of_metrics is None:
                self._result_of_metrics = tf.function(self._results, autograph=False)
            with tf.device(CHIEF):
                self.logs = self._result_of_metrics([tf.constant(v, w.dtype) for v, w in zip(self._sums(), self._metrics)])
        else:
            pieces = np.split(vector, np.cumsum([int(np.prod(shape)) for shape in self._log_shapes])[:-1])
            values = [piece.reshape(shape) for piece, shape in zip(pieces, self._log_shapes, strict=True)]
            self.logs = tf.nest.pack_sequence_as(self._log_structure, values)
        return self.logs

    def _sums(self) -> list[Any]:
        """The values of the metrics' variables, over all groups."""
        total = np.sum(list(self._states.values()), axis=0)
        sizes = [variable.shape.num_elements() for variable in self._metrics]
        return [
            piece.reshape(variable.shape)
            for piece, variable in zip(np.split(total, np.cumsum(sizes)[:-1]), self._metrics, strict=True)
        ]

    def _results(self, values: list[Any]) -> Any:
        with StatelessScope(state_mapping=list(zip(self._metrics, values, strict=True))):
            return self._model.get_metrics_result()


def _vector(values: list[Any]) -> Any:
    flat = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values]
    return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float64)


def _runs_of_equal_shapes(batches: list[Any]) -> list[list[Any]]:
    """Splits `batches`, in order, where shapes change: those of one run can be stacked."""
    runs: list[list[Any]] = []
    last: Any = None
    for batch in batches:
        flat = tf.nest.flatten(batch)
        dense = all(isinstance(value, tf.Tensor) for value in flat)
        shapes = [value.shape for value in flat] if dense else None
        if dense and shapes == last:
            runs[-1].append(batch)
        else:
            runs.append([batch])
        last = shapes
    return runs


def _tensor(value: Any) -> Any:
    return None if value is None else tf.convert_to_tensor(value)
