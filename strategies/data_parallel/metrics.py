"""Metrics of all replicas: each replica counts its own examples, and one all-reduce per execution sums them."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.keras_hooks.checks import metric_sums, metric_trial
from tfdist.strategies.keras_hooks.derived_logs import LogFunction, derived_logs
from tfdist.strategies.keras_hooks.held_optimizers import held_optimizers, with_inner
from tfdist.strategies.keras_hooks.replicas import own_values
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum
from tfdist.strategies.keras_hooks.step_logs import metrics_result, of_known_shape, own_names, with_metrics
from tfdist.strategies.model_parallel.split_tensor import SplitTensor, operand
from tfdist.strategies.private_api import TensorFlowTrainer


class ReplicaMetrics:
    """The metrics of a model, and what its layers keep, over the replicas of a strategy.

    Attributes:
        returns_metrics: whether the logs of the step are exactly the results of the metrics, so that nothing else is reduced.
        of_first: the ids of the variables that steps assign of which the value of the first replica counts (own_values.py).
    """

    def __init__(self, strategy: Any, layout: Layout, model: Any, step: Callable[..., Any]) -> None:
        self._strategy = strategy
        self._layout = layout
        self._model = model
        own_step = getattr(step, "__func__", None) in (TensorFlowTrainer.train_step, TensorFlowTrainer.test_step)
        self.of_first: set[int] = set()
        self.returns_metrics = own_step and type(model).compute_metrics is keras.Model.compute_metrics

    def variables(self) -> list[Any]:
        """Returns the Keras variables of the metrics, of which each replica has its own value."""
        return [v for v in metric_trial.variables_of(self._model) if v.synchronization == "on_read"]

    def shared_variables(self) -> list[Any]:
        """Returns the Keras variables that metrics made without `add_variable`: all replicas have one value."""
        return [v for v in metric_trial.variables_of(self._model) if (v.synchronization, v.aggregation) == ("auto", "none")]

    def _not_listed(self, assigned: Mapping[int, Any]) -> list[Any]:
        """Returns the assigned variables of metrics that the model does not list: logs may be computed from them, too."""
        listed = {id(v) for v in metric_trial.variables_of(self._model)}
        return [v for key, v in assigned.items() if v.synchronization == "on_read" and key not in listed]

    def begin(self) -> Any:
        """Returns the values of `shared_variables` before the steps, `PerReplica`, for `reduce`."""
        shared = self.shared_variables()
        metric_sums.note(shared)
        return self._strategy.run(lambda: [tf.identity(v.value) for v in shared]) if shared else []

    def reduce(self, begun: Any, shares: Any, logs: Any, assigned: Mapping[int, Any]) -> Any:
        """Returns the logs over all replicas, and gives every replica the mean of what layers keep.

        Args:
            begun: what `begin` returned before the steps.
            shares: each replica's part of the examples of the last step, `PerReplica` float32 scalars.
            logs: what the replicas' last steps returned, `PerReplica`.
            assigned: the variables that the steps assigned and that no optimizer updates, by id.
        """
        metrics, shared = [*self.variables(), *self._not_listed(assigned)], self.shared_variables()
        own: set[str] = set()
        derived: dict[str, LogFunction] = {}

        def on_replica(begun: Any, share: Any, logs: Any) -> Any:
            if not self.returns_metrics:
                own.update(own_names(self._model, logs, assigned))
                derived.update(derived_logs(self._model, logs, [*metrics, *shared], own))
            changes = [v.value - before for v, before in zip(shared, begun, strict=True)]
            counted = [*self._counted(metrics), *changes]
            totals, *rest = self._reduce_on_replica(share, logs, counted, self._layer_state(assigned))
            sums = [before + change for before, change in zip(begun, totals[len(metrics) :], strict=True)]
            for variable, total in zip(shared, sums, strict=True):
                self._local(variable).assign(total)
            return [*totals[: len(metrics)], *sums], *rest

        totals, mean_logs, requested = self._strategy.run(on_replica, args=(begun, shares, logs))
        if (requests := self._strategy.tfdist_hooks.task_requests) is not None:
            requests.total.assign(self._first(requested))
        totals = [self._first(total) for total in totals]
        with keras.StatelessScope(state_mapping=list(zip([*metrics, *shared], totals, strict=True))):
            result = metrics_result(self._model)
            result |= {name: compute(result, totals) for name, compute in derived.items()}
        if self.returns_metrics or (isinstance(logs, dict) and logs.keys() == result.keys() and not own):
            return result
        # A user's own step may return metrics nested, or among other logs.
        return with_metrics(tf.nest.map_structure(self._first, mean_logs), result, own - derived.keys())

    def keep(self, shares: Any, assigned: Mapping[int, Any]) -> None:
        """Gives every replica the mean of what layers keep, after a step of several, or of `predict`.

        Args:
            shares: each replica's part of the examples, `PerReplica` scalars.
            assigned: the variables that the step assigned, by id.
        """
        if state := self._layer_state(assigned):
            self._strategy.run(lambda share: self._reduce_on_replica(share, None, [], state), args=(shares,))

    def _first(self, value: Any) -> Any:
        return self._strategy.experimental_local_results(value)[0]

    def _local(self, variable: Any) -> Any:
        return self._strategy.experimental_local_results(variable.value)[self._layout.local_index()]

    def _is_first(self) -> bool:
        return self._layout.local_index() + self._layout.local.start == 0

    def _counted(self, metrics: list[Any]) -> list[Any]:
        """Returns what a replica adds to the values of metrics' variables."""
        is_first = float(self._is_first())
        weights = {"sum": 1.0, "mean": 1.0 / self._layout.replicas, "only_first_replica": is_first, "none": is_first}
        return [v.value * tf.cast(weights[v.aggregation], v.dtype) for v in metrics]

    def _reduce_on_replica(self, share: Any, logs: Any, counted: list[Any], state: list[Any]) -> Any:
        """Returns sums over the cluster: what metrics count, `logs` weighted by the examples, and the requests of tasks."""
        flat_logs = [of_known_shape(v) for v in tf.nest.flatten(logs) if v is not None]
        kept = [value if isinstance(value := operand(v), SplitTensor) else v.value for v in state]
        # In float64 the mean of equal values is this value: a count of steps stays what it is, also with shares such as 0.3.
        share = tf.cast(share, tf.float64)
        first = tf.constant(float(self._is_first()), tf.float64)
        weights = [*(first if id(v) in self.of_first else share for v in state), *(share for _ in flat_logs)]
        weighted = list(map(own_values.counted, (*kept, *flat_logs), weights))
        requests = self._strategy.tfdist_hooks.task_requests
        requested = tf.zeros(2) if requests is None else requests.own.read_value()
        sent = [*weighted, share] if weighted else []
        *sums, requested = all_reduce_sum([*counted, *sent, requested])
        total_share = sums.pop() if sent else share

        def mean_of(total: Any, before: Any, weight: Any) -> Any:
            mean = total if weight is first else tf.math.divide_no_nan(total, total_share)
            return tf.where(total_share > 0, tf.cast(mean, before.dtype), before)

        for variable, before, total, weight in zip(state, kept, sums[len(counted) :], weights, strict=False):
            if isinstance(before, SplitTensor):
                parts = total.parts
                variable.value.assign(
                    before.on_parts(lambda number, part, parts=parts, weight=weight: mean_of(parts[number], part, weight))
                )
            else:
                local = self._local(variable)
                local.assign(mean_of(total, local, weight))
        means = [
            tf.cast(tf.math.divide_no_nan(total, total_share), value.dtype)
            for value, total in zip(flat_logs, sums[len(counted) + len(state) :], strict=True)
        ]
        found = iter(means)
        logs = tf.nest.map_structure(lambda value: None if value is None else next(found), logs)
        return sums[: len(counted)], logs, requested

    def _layer_state(self, assigned: Mapping[int, Any]) -> list[Any]:
        """Returns the variables that steps assign in each replica, such as the moving averages of BatchNormalization.

        A codebook that follows the mean of examples may be trainable although no optimizer updates it. Losses and other objects
        that are no layers may have variables, too.
        """
        counted = {id(v) for v in metric_trial.variables_of(self._model)}
        return [
            v
            for v in (*self._model.variables, *self._not_of_model(assigned))
            if id(v) not in counted
            and id(v) in assigned
            and v.aggregation in ("none", "mean")
            and v.synchronization == "auto"
            and ("float" in v.dtype or id(v) in self.of_first)
        ]

    def _not_of_model(self, assigned: Mapping[int, Any]) -> list[Any]:
        """Returns the assigned variables that are neither the model's nor an optimizer's, if each replica has its own value."""
        optimizers = [each for held in held_optimizers(self._model) for each in with_inner(held)]
        known = {id(v) for v in (*self._model.variables, *(v for optimizer in optimizers for v in optimizer.variables))}
        has_own = len(self._layout.local) == 1
        return [
            v
            for key, v in assigned.items()
            if key not in known and (has_own or isinstance(v._value, tf.distribute.DistributedValues))
        ]
