"""What Keras calls as `train_function` and `test_function` under a ParameterServer strategy."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.coordinator.executions import Execution, Executions
from tfdist.strategies.coordinator.group_function import GroupFunction
from tfdist.strategies.coordinator.sync_on_read_variable import SyncOnReadVariable
from tfdist.strategies.inputs.batches import as_tensors
from tfdist.strategies.inputs.input_feed import InputFeed
from tfdist.strategies.keras_hooks import trainer
from tfdist.strategies.private_api import StatelessScope

MOST_METRIC_VALUES = 65536
"""Metrics that hold more numbers than this (a confusion matrix of many classes) are not sent to the chief after every step."""


class TrainingLoop:
    """Gives each group the next `steps_per_execution` batches as soon as it is free; returns once per execution that is done.

    The logs are the metrics over all steps of this epoch that are done, on all workers. What else a `train_step` of the user's
    own returns is that of the step which was done last.
    """

    def __init__(self, strategy: Any, model: Any, step: Callable[..., Any], in_flight: Executions) -> None:
        self._model = model
        self._executions = in_flight
        self._metrics: list[Any] = []  # Keras variables of the metrics, in the order in which a step sends them.
        self._size = 0  # Numbers that these hold.
        self._own = _Form()  # What the step returns beside metrics.
        self._results_form = _Form()
        self._step = self._make_step(strategy, model, step, self._logs_on_replica, self._metrics_on_replica, self._collect)
        self._states: dict[int, Any] = {}  # The metrics of each group, float64 vectors.
        self._sum: Any = np.zeros([0])
        self._means: list[tuple[int, int] | None] = []  # For each log where total and count of a mean are; None for others.
        self._result_of_metrics: Any = None
        self.logs: Any = None

    def _make_step(self, *args: Any) -> GroupFunction:
        return GroupFunction(*args)

    # In the function that a group runs.

    def _logs_on_replica(self, outputs: Any) -> Any:
        """What a step returned, as a float64 vector; empty where that is the metrics, which are sent instead."""
        self._metrics = self._metrics_to_send()
        self._size = sum(variable.shape.num_elements() for variable in self._metrics)
        outputs = outputs if isinstance(outputs, dict) else {"loss": outputs}
        known = self._metrics and outputs.keys() == self._model.get_metrics_result().keys()
        return self._own.flat({} if known else outputs)

    def _metrics_on_replica(self) -> Any:
        """The metrics' variables of one replica as a float64 vector."""
        return _vector([tf.convert_to_tensor(variable) for variable in self._metrics])

    def _metrics_to_send(self) -> list[Any]:
        """The variables of the model's metrics, where they are small enough to be sent after each step."""
        found = {id(variable): variable for metric in self._model.metrics for variable in metric.variables}
        variables = list(found.values())
        if not all(isinstance(variable._value, SyncOnReadVariable) for variable in variables):
            return []
        return variables if sum(variable.shape.num_elements() for variable in variables) <= MOST_METRIC_VALUES else []

    def _collect(self, logs: list[Any], states: list[Any], shares: list[Any]) -> Any:
        """The sum of the replicas' metrics, then the mean over the examples of what else they returned."""
        self._result_of_metrics = None  # Traced for the metrics as they were before.
        total = tf.add_n(states)
        if self._metrics:
            self._results(total)  # For the names of the logs; TensorFlow leaves out what nobody uses.
        own = tf.add_n([value * tf.cast(share, tf.float64) for value, share in zip(logs, shares, strict=True)])
        return tf.concat([total, own], axis=0)

    def _results(self, total: Any) -> Any:
        """The logs as one float64 vector, of the values of the metrics' variables as another; notes which are means."""
        places, values, begin = {}, [], 0
        for variable in self._metrics:
            size = variable.shape.num_elements()
            piece = tf.reshape(total[begin : begin + size], variable.shape)
            values.append((variable, tf.cast(piece, variable.dtype)))
            places[id(variable)] = begin
            begin += size
        with StatelessScope(state_mapping=values), _noting_means(self._model) as means:
            logs = self._model.get_metrics_result()
        flat = self._results_form.flat(logs)
        found = [means.get(id(value)) for value in tf.nest.flatten(logs)]
        self._means = [mean and (places[id(mean.total)], places[id(mean.count)]) for mean in found]
        return flat

    # On the chief.

    def __call__(self, iterator: Any) -> Any:
        """Keeps the groups busy with batches of `iterator`; returns logs. Raises StopIteration when all of them are done."""
        if not isinstance(iterator, InputFeed):  # A generator of one batch.
            self.begin()
            return self._one_batch(as_tensors(next(iterator)))
        if not len(self._executions):
            iterator.begin_epoch_if_over()
        while len(self._executions) < self._executions.limit:
            batches = iterator.take(self._model.steps_per_execution)
            if not batches:
                break
            self._schedule(batches, iterator.owner.element_spec)
        done = self._executions.wait_for_any()
        if done is None:
            raise StopIteration
        return self._done(done)

    def _one_batch(self, batch: Any) -> Any:
        """`train_on_batch` and `test_on_batch`."""
        execution = self._schedule([batch])
        self._executions.result_of(execution)
        return self._done(execution)

    def begin(self) -> None:
        """Before metrics start anew: ends what is under way and forgets what it gave."""
        self._executions.settle()
        self._states.clear()
        self._sum = np.zeros([self._size])
        self.logs = None

    def finish(self) -> Any:
        """At the end of an epoch: waits for what is under way; returns the logs."""
        while (done := self._executions.wait_for_any()) is not None:
            self._done(done)
        if self._states and self._metrics:
            # Keras reads each metric now: the sums are known already.
            sums = _cut(self._sum, [tuple(variable.shape) for variable in self._metrics])
            for variable, value in zip(self._metrics, sums, strict=True):
                variable._value.known_sum = tf.constant(value, variable._value.dtype)
        return self.logs

    def _schedule(self, batches: list[Any], element_spec: Any = None) -> Execution:
        calls = self._calls(batches, element_spec)
        if not self._states:
            self._sum = np.zeros([self._size])
            for variable in self._metrics:
                variable._value.known_sum = None

        def run(group: int) -> Any:
            return self._run_calls(group, calls)

        return self._executions.schedule(run)

    def _calls(self, batches: list[Any], element_spec: Any) -> list[tuple[Callable[[int], Any], int]]:
        """The functions to call one after the other, with the number of steps of each."""
        return [(self._step.prepare(run, element_spec), len(run)) for run in runs_of_equal_shapes(batches)]

    def _run_calls(self, group: int, calls: list[Any]) -> Any:
        """What one execution gives, in the thread of its group."""
        return [call(group) for call, _ in calls][-1]

    def _done(self, execution: Execution) -> Any:
        return self._note(execution.group, execution.result.numpy())

    def _note(self, group: int, vector: Any) -> Any:
        """Takes in what a group gave after a step; returns the logs over all groups."""
        state = vector[: self._size]
        logs = self._own.of(vector[self._size :])
        if self._metrics:
            with np.errstate(invalid="ignore"):  # Of losses that are not finite callbacks are told.
                self._sum = self._sum - self._states.get(group, 0.0) + state
            self._states[group] = state
            metrics = self._results_form.of(self._logs_of_metrics())
            logs = trainer.with_metrics(logs, metrics) if logs else metrics
        self.logs = logs
        return logs

    def _logs_of_metrics(self) -> Any:
        means = [pair for pair in self._means if pair is not None]
        if len(means) == len(self._means):  # A call of TensorFlow for every step would cost more than all else on the chief.
            pairs = [(self._sum[total], self._sum[count]) for total, count in means]
            return [total / count if count else 0.0 for total, count in pairs]
        if self._result_of_metrics is None:
            self._result_of_metrics = tf.function(self._results, autograph=False)
        with tf.device(chief_device.DEVICE):
            return self._result_of_metrics(tf.constant(self._sum)).numpy()


@contextlib.contextmanager
def _noting_means(model: Any) -> Iterator[dict[int, Any]]:
    """Inside it, results of `model`'s metrics that are `keras.metrics.Mean`s, which most are, are noted: id -> metric."""
    leaves = [leaf for metric in model.metrics for leaf in getattr(metric, "metrics", None) or [metric]]
    means = [leaf for leaf in leaves if type(leaf).result is keras.metrics.Mean.result]
    noted: dict[int, Any] = {}
    kept = []  # An id is another's when its value is gone.

    def noting(metric: Any) -> Callable[[], Any]:
        def result() -> Any:
            value = type(metric).result(metric)
            noted[id(value)] = metric
            kept.append(value)
            return value

        return result

    for metric in means:
        metric.__dict__["result"] = noting(metric)
    try:
        yield noted
    finally:
        for metric in means:
            del metric.__dict__["result"]


class _Form:
    """The names and shapes of logs, which travel as a vector."""

    def __init__(self) -> None:
        self._structure: Any = {}
        self._shapes: list[tuple[int, ...]] = []

    def flat(self, logs: Any) -> Any:
        """Nested logs as a float64 vector, in a function; notes their form."""
        values = [tf.convert_to_tensor(value) for value in tf.nest.flatten(logs)]
        self._structure = tf.nest.map_structure(lambda _: 0, logs)
        self._shapes = [tuple(value.shape) for value in values]
        return _vector(values)

    def of(self, vector: Any) -> Any:
        """The logs that such a vector holds."""
        return tf.nest.pack_sequence_as(self._structure, _cut(vector, self._shapes))


def _cut(vector: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """The values of these shapes that follow each other in `vector`; single numbers as Python's."""
    values, begin = [], 0
    for shape in shapes:
        size = math.prod(shape)
        values.append(float(vector[begin]) if shape == () else vector[begin : begin + size].reshape(shape))
        begin += size
    return values


def _vector(values: list[Any]) -> Any:
    flat = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values]
    return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float64)


def runs_of_equal_shapes(batches: list[Any]) -> list[list[Any]]:
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
