"""Metrics and logs of asynchronous worker groups: what a step returns to the chief, and the logs that Keras gets of it.

A step returns one float64 vector: the variables of the model's metrics, summed over the replicas of the group, then the logs of
a user's own `train_step`. The chief adds up the metrics of all groups. Metrics that `model.metrics` lacks, which Keras never
resets, go on from what they have counted before.
"""

import functools
import logging
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator import metric_variables
from tfdist.strategies.coordinator.calls.execution import Execution
from tfdist.strategies.coordinator.calls.tensor_fusion import unflatten, unflatten_array
from tfdist.strategies.coordinator.logs_format import LogsFormat, float64_vector
from tfdist.strategies.coordinator.metric_variables import noting_means, size_of, values_of
from tfdist.strategies.coordinator.read_logs import ReadLogs, with_value
from tfdist.strategies.keras_hooks import step_logs
from tfdist.strategies.keras_hooks.checks.metric_trial import leaves
from tfdist.strategies.keras_hooks.derived_logs import LogFunction, derived_logs
from tfdist.strategies.keras_hooks.interface import Logs
from tfdist.strategies.keras_hooks.metric_values import assign_metric_values
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.private_api import StatelessScope
from tfdist.strategies.runtime import chief_device

_log = logging.getLogger("tfdist")


class MetricLogs:
    """The logs of one of Keras' functions, `train_function` or `test_function`. Implements `StepOutputs`.

    Attributes:
        logs: the logs after the last step that the chief has added: the metrics over all steps since `reset`, and what else
            that step returned. None before the first.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._variables: list[Any] = []  # Keras variables of the metrics, in the order in which a step returns them.
        self._unlisted: list[Any] = []  # The last of them, which `model.metrics` lacks: Keras does not reset them.
        self._size = 0  # Numbers that all of them hold.
        self._own_logs = LogsFormat()  # Of what a step returns beside metrics.
        self._are_metrics = True  # Whether a step returns the model's metrics and nothing else.
        self._own_names: set[str] = set()  # Of metrics under whose names a step returns something else.
        self._derived: dict[str, LogFunction] = {}  # Logs that a step computes from metrics.
        self._metric_logs = LogsFormat()
        self._means: list[tuple[int, int] | None] = []  # The places of total and count of each log; None if it is no mean.
        self._results_function: Any = None
        # The metrics that each group has counted, also before it began with zero again: the `order` of the execution that has
        # returned them, and a float64 vector.
        self._by_group: dict[tuple[int, tuple[int, int]], tuple[int, Any]] = {}
        self._sum: Any = np.zeros([0])
        self._carried: Any = None  # The sums of an epoch until a callback has reset the metrics in its middle.
        self._read = ReadLogs()  # What Keras has of them.
        self._paused: list[ReadLogs] = []  # Of the epochs around this one, the innermost last.
        self._listens = False  # Whether the metrics' variables ask for the sums here, and tell what is assigned to them.
        self._has_value = False  # Whether it has warned of metrics that do not start from 0.
        self._restarts = False  # Whether the metrics' variables have to start from zero before the next step.
        self.logs: Any = None

    # In the function of a group.

    def of_replica(self, outputs: Any, rows: Any) -> Any:
        """See `StepOutputs`. Returns a float64 vector; empty if the step returned the model's metrics, which travel anyway."""
        self._check_shared_variables()
        listed, self._unlisted = metric_variables.to_send(self._model)
        self._variables = [*listed, *self._unlisted]
        for variable in self._variables:
            variable._value.is_sent = True
        self._size = size_of(self._variables)
        outputs = {} if outputs is None else outputs if isinstance(outputs, dict) else {"loss": outputs}
        self._own_names = step_logs.own_names(self._model, outputs)
        self._derived = derived_logs(self._model, outputs, self._variables, self._own_names)
        returns_metrics = not self._own_names and outputs.keys() == self._model.get_metrics_result().keys()
        self._are_metrics = bool(self._variables) and returns_metrics
        return self._own_logs.flatten({} if self._are_metrics else outputs)

    def after_steps(self) -> Any:
        """See `StepOutputs`. Returns the metrics' variables of one replica as a float64 vector."""
        return float64_vector([tf.convert_to_tensor(variable) for variable in self._variables])

    def of_group(self, outputs: list[Any], after: list[Any], shares: list[Any]) -> Any:
        """See `StepOutputs`. Returns the sum of the replicas' metrics, then the mean of their own logs over the examples."""
        self._results_function = None  # It was traced for the metrics as they were before.
        total = tf.add_n(after)
        if self._variables:
            self._results(total)  # Notes the names of the logs. TensorFlow removes the operations, which nothing uses.
        parts = [tf.cast(share, tf.float64) for share in shares]
        own = tf.add_n([value * part for value, part in zip(outputs, parts, strict=True)])
        own = tf.math.divide_no_nan(own, tf.add_n(parts))  # Rounded shares such as 0.6 and 0.4 make no 1, and no count whole.
        return tf.concat([total, own], axis=0)

    def _check_shared_variables(self) -> None:
        """Raises ValueError if a step of one of several replicas assigns a metric's variable that they share, by its name."""
        replica = replica_context.current()
        if replica is None or (replica.share is None and len(replica.strategy.worker_groups) < 2):
            return
        for metric in leaves(self._model):
            for variable in metric.variables:
                if variable.synchronization != "on_read" and id(variable) in replica.assigned:
                    raise ValueError(
                        f"the metric {metric.name} counts in {variable.path}, a keras.Variable that all workers share, "
                        "so their counts do not add up; create it with self.add_variable, so that each worker has its own"
                    )

    def _results(self, total: Any) -> Any:
        """Returns the logs, float64 [n], for these values of the metrics' variables; notes which logs are means."""
        pieces = unflatten(total, [variable.shape for variable in self._variables])
        values = [(v, tf.cast(piece, v.dtype)) for v, piece in zip(self._variables, pieces, strict=True)]
        with StatelessScope(state_mapping=values), noting_means(self._model) as means:
            logs = step_logs.metrics_result(self._model)
            logs |= {name: compute(logs, [value for _, value in values]) for name, compute in self._derived.items()}
        vector = self._metric_logs.flatten(logs)
        places, begin = {}, 0
        for variable in self._variables:
            places[id(variable)] = begin
            begin += variable.shape.num_elements()
        found = [means.get(id(value)) for value in tf.nest.flatten(logs)]
        self._means = [mean and (places[id(mean.total)], places[id(mean.count)]) for mean in found]
        return vector

    # On the chief.

    def reset(self) -> None:
        """Forgets what the groups have returned: metrics start from zero."""
        self._let_go(self._sum)
        self._by_group.clear()
        self._sum = np.zeros([self._size])
        self._carried, self._restarts = None, False
        self._read = ReadLogs()
        self.logs = None

    def pause(self) -> None:
        """Lets the metrics start from zero for a `fit` or `train_on_batch` of the same model in a callback of this epoch."""
        self._let_go(self._sums_read())
        read = self._read
        self.reset()
        self._paused.append(read)

    def go_on(self) -> None:
        """Continues the epoch that `pause` has put aside: its steps that Keras has not read count after those of the others."""
        if not self._paused:
            return
        counted, self._read = self._sum, self._paused.pop()
        self._by_group.clear()
        self._set_read(slice(None), counted)
        self._carried, self._restarts, self._read.is_open = self._sum, True, True
        self._listen()
        if unread := self._read.unread:
            self.logs = unread[-1][0]

    def begin_anew(self) -> None:
        """Lets the metrics of an epoch start from zero after the steps whose logs Keras has: a callback has reset them."""
        self._let_go(self._sums_read())
        self._by_group.clear()
        self._set_read(slice(self._size - size_of(self._unlisted)), 0.0)
        self._carried, self._restarts, self._read.is_open = self._sum, False, True
        self._listen()

    def carry(self) -> None:
        """Keeps the sums so far, because others use the metrics next: a callback evaluates in the middle of an epoch."""
        self._let_go(self._sums_read())
        self._carried, self._restarts, self._read.is_open = self._sum, True, False
        self._by_group.clear()

    def come_back(self) -> None:
        """Notes that those who have used the metrics are done: what a callback assigns to them is meant for this epoch."""
        self._read.is_open = True
        for number, variable in enumerate(self._variables):
            variable._value.when_assigned = functools.partial(_begin_at, weakref.ref(self), number)
        if self._unlisted:  # Others may have added to them.
            self._set_read(slice(self._size - size_of(self._unlisted), None), values_of(self._unlisted))
            self._carried = self._sum

    def _let_go(self, sums: Any) -> None:
        """Gives metrics that Keras does not reset their part of `sums`: others go on from there."""
        if self._listens:
            metric_variables.assign(self._unlisted, sums[self._size - size_of(self._unlisted) :])
        self._listens = False

    def _listen(self) -> None:
        """Lets callbacks read the sums of the logs that Keras has, and reset or assign them."""
        self._listens = True
        for number, variable in enumerate(self._variables):
            variable._value.known_sum = functools.partial(_part_of_sum, weakref.ref(self), number)
            variable._value.when_assigned = functools.partial(_begin_at, weakref.ref(self), number)

    def note_read(self, logs: Any) -> None:
        """Notes that Keras reads these logs. What a callback resets then counts the steps after them."""
        self._read.note_read(logs)
        self._read.is_open = True
        if not self._listens:  # Others have used the metrics, or a callback has reset them, and these steps were made before.
            self._listen()

    def values(self, model: Any) -> list[Any]:
        """Returns the metrics of an epoch that is not over, as numpy arrays: the sums, or the metrics' variables."""
        if self._variables:
            return [self._sum]
        return [np.zeros([0]), *(variable.numpy() for variable in model.metrics_variables)]

    def set_values(self, model: Any, values: list[Any]) -> bool:
        """Continues an epoch with what `values` returned, in another process. The metrics have just been reset.

        Returns:
            Whether the metrics' variables have these values now.
        """
        total, *of_variables = values
        if not of_variables:
            self._carried = self._read.sums = total
            # For an epoch that has no step left. Its steps may not be traced yet, so the variables are looked up here.
            listed, others = metric_variables.to_send(self._model)
            return metric_variables.assign([*listed, *others], total)
        return assign_metric_values(model, of_variables)

    def begin_steps(self) -> None:
        """Prepares for steps that are about to be scheduled. Call it after their function has been traced."""
        if not self._by_group:
            if self._carried is None:
                self._warn_of_values()
                if self._unlisted:
                    before = values_of(self._unlisted)
                    metric_variables.assign(self._unlisted, before)
                    self._carried = np.concatenate([np.zeros([self._size - len(before)]), before])
            self._sum = np.zeros([self._size]) if self._carried is None else self._carried
            if self._restarts:
                metric_variables.assign(self._variables, self._sum)
            self._restarts, self._read.is_open = False, True
            self._listen()

    def _warn_of_values(self) -> None:
        """Names, once, a variable that is not 0 after a reset: a maximum, or what a callback has assigned before a step."""
        listed = [] if self._has_value else self._variables[: len(self._variables) - len(self._unlisted)]
        named = [each.path for each in listed if np.any(each._value.numpy())]
        if named:
            self._has_value = True
            _log.warning(
                "the metric variable %s is not 0 when an epoch begins, and workers count from 0, so the logs lack its value; "
                "let it start from 0, and add the number in result()",
                named[0],
            )

    def add(self, execution: Execution, rows: Any) -> list[Any]:
        """Adds what a group has returned.

        Args:
            execution: the execution in which it made the steps.
            rows: what its steps returned, numpy float64 [steps, n]. A row holds the metrics of all steps of the group up to
                it, since it began with zero (`Execution.counting`). So rows after which nobody needs the logs may be missing,
                but not the last.

        Returns:
            The logs over the steps of all groups, after each row.
        """
        group = execution.group, execution.counting
        logs = self._own_logs.unflatten(rows[:, self._size :])
        if self._variables:
            metrics = rows[:, : self._size]
            order, counted = self._by_group.get(group, (0, 0.0))
            if execution.order < order:  # What is there already has its steps, too.
                metrics = np.broadcast_to(counted, metrics.shape)
            with np.errstate(invalid="ignore"):  # Callbacks get losses that are not finite.
                sums = self._without(group) + metrics
                results = self._metric_logs.unflatten(self._results_of(sums))
            self._sum, self._by_group[group] = sums[-1], (max(execution.order, order), metrics[-1])
            logs = [self._with_results(each, result) for each, result in zip(logs, results, strict=True)]
            self._read.add(logs, sums)
        self.logs = logs[-1]
        return logs

    def _without(self, group: tuple[int, tuple[int, int]]) -> Any:
        """Returns the sums without what a group has counted. Of a sum that is infinite nothing can be subtracted."""
        rest = self._sum - self._by_group.get(group, (0, 0.0))[1]
        if np.isfinite(rest).all():
            return rest
        others = [counted for other, (_, counted) in self._by_group.items() if other != group]
        return sum(others, np.zeros([self._size]) if self._carried is None else self._carried)

    def with_metrics(self, logs: Logs, metrics: dict[str, Any]) -> Logs:
        """Returns the logs of a step with the results of the metrics, but for values of the step's own."""
        return step_logs.with_metrics(logs, metrics, self._own_names | self._derived.keys())

    def publish_sums(self, read: Logs = None) -> None:
        """Gives the metrics' variables their sums, because Keras reads each at the end of an epoch. `read`: see `finish`."""
        if read:
            self.logs, self._sum = read, self._sum if self._read.sums is None else self._read.sums
        total = self._sum if self._by_group else self._carried
        self._listens = False
        if total is not None:
            metric_variables.assign(self._variables, total)
            self._carried = total
            self._by_group.clear()

    def begin_at(self, number: int, value: Any) -> bool:
        """Makes a callback's value that of a metric's variable: what groups count from now on is added to it.

        Returns:
            Whether an epoch is not over, so that others need to know.
        """
        if not self._read.is_open:
            return False
        self._model.distribute_strategy.tfdist_hooks.count_steps()  # Those in flight come after it.
        sizes = [variable.shape.num_elements() for variable in self._variables]
        place = slice(sum(sizes[:number]), sum(sizes[: number + 1]))
        self._by_group = {group: (order, with_value(each, place, 0.0)) for group, (order, each) in self._by_group.items()}
        self._set_read(place, value)
        carried = np.zeros([self._size]) if self._carried is None else self._carried
        self._carried = with_value(carried, place, self._sum[place])
        self._variables[number]._value.known_sum = functools.partial(_part_of_sum, weakref.ref(self), number)
        return True

    def _sums_read(self) -> Any:
        """Returns the sums that Keras' last logs are of, or those of all steps if it has none."""
        return self._sum if self._read.sums is None else self._read.sums

    def _set_read(self, place: slice, value: Any) -> None:
        """Makes `value` the sums at `place` that Keras' last logs are of. Logs that it does not have yet go on from there."""
        self._sum, unread = self._read.move(place, value, self._size), self._read.unread
        results = self._metric_logs.unflatten(self._results_of(np.stack([sums for _, sums in unread]))) if unread else ()
        for (logs, _), result in zip(unread, results, strict=True):
            logs |= self._with_results(logs, result)

    def _with_results(self, logs: Any, results: Any) -> Any:
        if self._are_metrics:
            return results
        return step_logs.with_metrics(logs, results, self._own_names - self._derived.keys())

    def _results_of(self, sums: Any) -> Any:
        """Returns the values of the metrics' logs, float64 [rows, m], for each row of their variables, [rows, n]."""
        means = [places for places in self._means if places is not None]
        if len(means) == len(self._means):  # In numpy: a call of TensorFlow costs more than all else that the chief does here.
            places = np.array(means, int).reshape([-1, 2])
            totals, counts = sums[:, places[:, 0]], sums[:, places[:, 1]]
            return np.divide(totals, counts, out=np.zeros_like(totals), where=counts != 0)
        if self._results_function is None:
            self._results_function = tf.function(self._results, autograph=False)
        with tf.device(chief_device.DEVICE):
            return np.stack([self._results_function(tf.constant(row)).numpy() for row in sums])


def _begin_at(reference: "weakref.ref[MetricLogs]", number: int, value: Any) -> bool:
    return (logs := reference()) is not None and logs.begin_at(number, value)


def _part_of_sum(reference: "weakref.ref[MetricLogs]", number: int) -> Any:
    """Returns the sum of one of the metrics' variables over the steps whose logs Keras has; None if nobody adds any more.

    A variable that kept the `MetricLogs` itself would keep its model.
    """
    if (logs := reference()) is None:
        return None
    return unflatten_array(logs._sums_read(), [tuple(variable.shape) for variable in logs._variables])[number]
