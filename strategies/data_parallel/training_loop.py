"""Keras' step functions for strategies whose replicas step together: Mirrored and MultiWorkerMirrored.

A step runs on every replica with its part of the batch (inputs/batch_shards.py); gradients are added up before the update
(keras_hooks/optimizer.py). Metrics are kept by each replica. After each execution, of `steps_per_execution` steps, one all-reduce
brings them together: the logs that callbacks see are exact and equal on every task, and reading them sends nothing.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.inputs.batch_shards import (
    Layout,
    ShardedDataset,
    ShardedIterator,
    as_tensors,
    at_least_one,
    concatenated,
    examples_of,
    per_replica,
)
from tfdist.strategies.keras_hooks.optimizer import add_up
from tfdist.strategies.keras_hooks.replica_context import Replica, SparseInLoopError, current, entered
from tfdist.strategies.keras_hooks.trainer import check_optimizer, with_metrics
from tfdist.strategies.private_api import TensorFlowTrainer


class DataParallelHooks:
    """What `KerasHooks` asks a strategy for; mixed into a strategy class."""

    extended: Any
    run: Callable[..., Any]
    gather: Callable[..., Any]
    experimental_local_results: Callable[..., tuple[Any, ...]]
    experimental_distribute_dataset: Callable[..., Any]

    tfdist_layout: Layout

    def _prepare(self, layout: Layout) -> None:
        """Called once, when TensorFlow's part of the strategy is made."""
        self.tfdist_layout = layout
        self.tfdist_hooks = self
        self._tfdist_tracing = 0
        merges = self.extended._use_merge_call
        # In a compiled step replicas meet in collectives only, which unlike merge_call may stand in a `cond`.
        self.extended._use_merge_call = lambda: merges() and (tf.executing_eagerly() or not self._tfdist_tracing)
        self.extended._replica_ctx_all_reduce = _outside_xla(self.extended._replica_ctx_all_reduce)

    def batch_source(self, dataset: Any) -> Any:
        """What Keras iterates: this task's parts of every batch, or TensorFlow's shards where the user has set FILE or OFF."""
        policy = dataset.options().experimental_distribute.auto_shard_policy
        kept = (tf.data.experimental.AutoShardPolicy.FILE, tf.data.experimental.AutoShardPolicy.OFF)
        if policy in kept and len(self.tfdist_layout.local) < self.tfdist_layout.replicas:
            return self.experimental_distribute_dataset(dataset)
        return ShardedDataset(dataset, self.tfdist_layout)

    def example_batch(self, dataset: Any) -> Any:
        """Tensors or specs that have the shapes of a batch of `dataset`, for building a model."""
        if isinstance(dataset, ShardedDataset):
            return dataset.example()
        return tf.nest.map_structure(lambda v: self.experimental_local_results(v)[0], next(iter(dataset)))

    def step_function(self, model: Any, step: Callable[..., Any]) -> Callable[[Any], Any]:
        """See `KerasHooks`. Raises ValueError for an optimizer that was made outside the scope."""
        check_optimizer(model, self)
        return _Steps(self, model, step)

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """See `KerasHooks`: every task gets the whole output, in the order of the input."""
        step = _compiled(model, model._autoconvert_optionals(model.predict_step))

        def on_replica(part: Any) -> Any:
            with entered(Replica(self, self.local_index(), None)):
                outputs, rows = step(at_least_one(part)), examples_of(part)
            return tf.nest.map_structure(lambda v: v[:rows] if v.shape.rank else v, outputs)

        def on_batch(batch: Any) -> Any:
            with self.traced():
                return tf.nest.map_structure(self._concat, self.run(on_replica, args=(batch,)))

        function = on_batch if model.run_eagerly else tf.function(on_batch, reduce_retracing=True, autograph=False)

        def predict(batches: list[Any]) -> Any:
            outputs = [function(batch if _is_shared_out(batch) else self._share_out(batch)) for batch in batches]
            return concatenated(outputs)

        return predict

    def end_epoch(self, model: Any, logs: Any) -> Any:
        """See `KerasHooks`: the last execution's logs are those of the epoch; reading metrics again would be collective."""
        return logs

    def reset_metrics(self) -> None:
        """See `KerasHooks`: nothing is in flight between two executions."""

    def check_data(self, data: Any) -> None:
        """See `KerasHooks`: any."""

    shows_progress = True

    def callbacks(self, callbacks: list[Any]) -> list[Any]:
        """See `KerasHooks`."""
        return callbacks

    def local_index(self) -> int:
        """Which of this task's replicas the current replica context is."""
        number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        return int(number) - self.tfdist_layout.local.start

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Surrounds what is traced for one of tfdist's own functions."""
        self._tfdist_tracing += 1
        try:
            yield
        finally:
            self._tfdist_tracing -= 1

    def _share_out(self, batch: Any) -> Any:
        return per_replica(self.tfdist_layout.split(as_tensors(batch))["parts"])

    def _concat(self, value: Any) -> Any:
        local = self.experimental_local_results(value)
        if local[0].shape.rank == 0:
            return tf.stack(local) if len(local) > 1 else local[0]
        if len(local) == self.tfdist_layout.replicas:
            return tf.concat(local, axis=0)
        if local[0].dtype == tf.bool:  # TensorFlow gathers numbers only.
            return tf.cast(self._concat(self.run(lambda v: tf.cast(v, tf.int32), args=(value,))), tf.bool)
        return self.gather(value, axis=0)


class _Steps:
    """What Keras calls as `train_function` or `test_function`: up to `steps_per_execution` batches, all replicas together."""

    def __init__(self, strategy: DataParallelHooks, model: Any, step: Callable[..., Any]) -> None:
        self._strategy = strategy
        self._layout = strategy.tfdist_layout
        self._model = model
        self._gives_metrics = self._loops = _gives_metrics(model, step)
        self._step = _compiled(model, model._autoconvert_optionals(step))
        self._assigned: dict[int, Any] = {}  # Keras variables that the step assigns, by id
        self._functions: dict[Any, Any] = {}

    def __call__(self, iterator: Any) -> Any:
        """Runs the next batches of `iterator`; returns logs; raises StopIteration where it has none."""
        many = self._model.steps_per_execution
        loops = many > 1 and self._loops and not self._model.run_eagerly
        if loops and isinstance(iterator, ShardedIterator) and not iterator.ahead:
            try:
                done, logs = self._function("loop", iterator.element_spec)(iterator.elements, many)
                if int(done) == 0:
                    raise StopIteration
                return logs
            except SparseInLoopError:  # While tracing: no batch has been taken yet.
                self._loops = False
        logs = None
        for _ in range(many if isinstance(iterator, ShardedIterator | tf.distribute.DistributedIterator) else 1):
            try:
                logs = self._one(iterator)
            except StopIteration:
                break
        if logs is None:
            raise StopIteration
        return logs

    def _one(self, iterator: Any) -> Any:
        if isinstance(iterator, ShardedIterator):
            element = iterator.take()
            small = int(element["examples"]) < self._layout.replicas
            return self._function("small" if small else "full", iterator.element_spec)(element)
        batch = next(iterator)
        if _is_shared_out(batch):
            return self._function("distributed", None)(batch)
        element = self._layout.split(as_tensors(batch))  # train_on_batch, test_on_batch
        return self._function("small", None)(element)

    def _function(self, kind: str, spec: Any) -> Any:
        """The compiled function of that kind for elements of that spec; traced once for all sizes of batches."""
        key = (kind, str(spec))
        if key not in self._functions:
            body = {
                "loop": self._loop,
                "full": lambda element: self._step_of(element, small=False),
                "small": lambda element: self._step_of(element, small=True),
                "distributed": self._step_of_shards,
            }[kind]
            if not self._model.run_eagerly:
                signature = [spec] if kind in ("full", "small") and spec is not None else None
                body = tf.function(body, autograph=False, input_signature=signature, reduce_retracing=signature is None)
            self._functions[key] = body
        return self._functions[key]

    # What is traced.

    def _step_of(self, element: Any, small: bool) -> Any:
        with self._strategy.traced():
            shares = self._layout.shares(element["examples"])
            logs = self._run(element["parts"], shares, small)
            return self._bring_together(per_replica(shares), logs)

    def _loop(self, elements: Any, limit: tf.Tensor) -> Any:
        """At most `limit` steps: `(how many, logs)`. Nothing collective stands in the `cond` that ends the reading."""

        def goes_on(done: Any, element: Any, _: Any) -> Any:
            return tf.logical_and(done < limit, element.has_value())

        def body(done: Any, optional: Any, _: Any) -> Any:
            element = optional.get_value()
            shares = self._layout.shares(element["examples"])
            self._run(element["parts"], shares, small=True, looping=True)
            following = tf.cond(done + 1 < limit, elements.get_next_as_optional, lambda: optional)
            return done + 1, following, shares

        with self._strategy.traced():
            begin = (tf.constant(0), elements.get_next_as_optional(), [tf.constant(0.0) for _ in self._layout.local])
            done, _, shares = tf.while_loop(goes_on, body, begin, parallel_iterations=1)
            return done, self._bring_together(per_replica(shares), None)

    def _step_of_shards(self, batch: Any) -> Any:
        """A step on a batch of TensorFlow's own distributed dataset: only the replicas together know its size."""

        def share(part: Any) -> Any:
            own = tf.cast(examples_of(part), tf.float32)
            return tf.math.divide_no_nan(own, add_up([own])[0])

        with self._strategy.traced():
            shares = self._strategy.run(share, args=(batch,))
            logs = self._strategy.run(lambda part, own: self._on_replica(part, own, small=True), args=(batch, shares))
            return self._bring_together(shares, logs)

    def _run(self, parts: Sequence[Any], shares: list[tf.Tensor], small: bool, looping: bool = False) -> Any:
        return self._strategy.run(
            lambda part, share: self._on_replica(part, share, small, looping), args=(per_replica(parts), per_replica(shares))
        )

    def _on_replica(self, part: Any, share: Any, small: bool, looping: bool = False) -> Any:
        """One replica's step. Where the batch may be too small for every replica, one without examples computes one of zeros,
        which counts for nothing: its share is 0, and its metrics are put back."""
        with entered(Replica(self._strategy, self._strategy.local_index(), share, looping=looping)) as replica:
            if not small:
                logs = self._step(part)
            else:
                before = [(v, tf.identity(v.value)) for v in self._metric_variables()]
                logs = self._step(at_least_one(part))
                for variable, value in before:
                    variable.value.assign(tf.where(share > 0, variable.value, value))
        self._assigned.update(replica.assigned)
        return logs

    def _bring_together(self, shares: Any, logs: Any) -> Any:
        """Adds up metrics over all replicas, averages what layers keep; returns the logs of the whole batch."""
        metrics = self._metric_variables()
        totals, state_and_logs = self._strategy.run(self._add_up_on_replica, args=(shares, logs, metrics))
        totals = [self._strategy.experimental_local_results(total)[0] for total in totals]
        with keras.StatelessScope(state_mapping=list(zip(metrics, totals, strict=True))):
            result = self._model.get_metrics_result()
        if self._gives_metrics or (isinstance(logs, dict) and logs.keys() == result.keys()):
            return result
        logs = tf.nest.map_structure(lambda v: self._strategy.experimental_local_results(v)[0], state_and_logs)
        return with_metrics(logs, result)  # An own step may return metrics nested, or beside others.

    def _add_up_on_replica(self, share: Any, logs: Any, metrics: list[Any]) -> Any:
        replicas, index = self._layout.replicas, self._strategy.local_index()
        first = index + self._layout.local.start == 0
        own = {"sum": 1.0, "mean": 1.0 / replicas, "only_first_replica": float(first), "none": float(first)}
        counted = [v.value * tf.cast(own[v.aggregation], v.dtype) for v in metrics]
        state = self._layer_state()
        flat_logs = [tf.convert_to_tensor(v) for v in tf.nest.flatten(logs) if v is not None]
        weighted = [tf.cast(v, tf.float32) * share for v in (*(v.value for v in state), *flat_logs)]
        sums = add_up([*counted, *weighted, share])
        whole = sums.pop()
        for variable, total in zip(state, sums[len(metrics) :], strict=False):
            local = self._strategy.experimental_local_results(variable.value)[index]
            mean = tf.cast(tf.math.divide_no_nan(total, whole), local.dtype)
            local.assign(tf.where(whole > 0, mean, local))
        means = [
            tf.cast(tf.math.divide_no_nan(total, whole), value.dtype)
            for value, total in zip(flat_logs, sums[len(metrics) + len(state) :], strict=True)
        ]
        return sums[: len(metrics)], tf.nest.pack_sequence_as(logs, means) if flat_logs else logs

    def _metric_variables(self) -> list[Any]:
        return [v for v in self._model.metrics_variables if v.synchronization == "on_read"]

    def _layer_state(self) -> list[Any]:
        """What layers update by themselves in each replica, as the moving averages of BatchNormalization."""
        return [
            v
            for v in self._model.non_trainable_variables
            if id(v) in self._assigned and v.aggregation == "none" and v.synchronization == "auto" and "float" in v.dtype
        ]


def _compiled(model: Any, step: Callable[..., Any]) -> Callable[[Any], Any]:
    """`step`; with `jit_compile=True` compiled by XLA but for the update of the weights, which needs the other replicas."""
    if model.jit_compile is not True:
        return step

    def compiled(part: Any) -> Any:
        replica = current()
        assert replica is not None
        part = tf.nest.map_structure(lambda v: None if isinstance(v, tf.experimental.Optional) else v, part)
        waiting: list[Any] = []
        replica.waiting = waiting

        def until_update(part: Any) -> Any:
            logs = step(part)
            return logs, [[gradient for gradient in gradients if gradient is not None] for _, gradients, _ in waiting]

        try:
            logs, computed = tf.function(until_update, jit_compile=True, autograph=False)(part)
        finally:
            replica.waiting = None
        for (optimizer, gradients, variables), values in zip(waiting, computed, strict=True):
            values = iter(values)
            optimizer.apply([None if gradient is None else next(values) for gradient in gradients], variables)
        return logs

    return compiled


def _outside_xla(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        replica = current()
        if replica is not None and replica.waiting is not None:
            raise ValueError(
                "jit_compile=True cannot work where the step itself adds up values over the replicas, as "
                "BatchNormalization(synchronized=True) does: XLA cannot compile that; leave jit_compile at 'auto'"
            )
        return all_reduce(*args, **kwargs)

    return checked


def _gives_metrics(model: Any, step: Callable[..., Any]) -> bool:
    """Whether the logs of `step` are surely the metrics' results: Keras' own step with Keras' own `compute_metrics`."""
    own_step = getattr(step, "__func__", None) in (TensorFlowTrainer.train_step, TensorFlowTrainer.test_step)
    return own_step and type(model).compute_metrics is keras.Model.compute_metrics


def _is_shared_out(batch: Any) -> bool:
    return any(isinstance(v, tf.distribute.DistributedValues) for v in tf.nest.flatten(batch))
