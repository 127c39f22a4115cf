"""Keras' train and test functions for replicas that step together.

A step runs on every replica with its shard of the batch (inputs/batch_shards.py). Gradients are added up before the update
(keras_hooks/optimizer.py). Each replica keeps its own metrics; after each execution, of `steps_per_execution` steps, one
all-reduce sums them (metrics.py). So the logs that callbacks see are exact and equal on every task, and reading them sends
nothing.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.data_parallel.branches import check_updates
from tfdist.strategies.data_parallel.metrics import ReplicaMetrics
from tfdist.strategies.data_parallel.xla import compiled
from tfdist.strategies.inputs.batch_shards import Layout, ShardedIterator, at_least_one, examples_of, per_replica
from tfdist.strategies.inputs.batches import as_tensors, rows_of, with_unknown_rows, without_optionals
from tfdist.strategies.inputs.source import EmptyDatasetError
from tfdist.strategies.keras_hooks.checks import log_trial, metric_sums
from tfdist.strategies.keras_hooks.checks.shard_check import ShardCheck
from tfdist.strategies.keras_hooks.checks.step_trial import are_dense, mapped
from tfdist.strategies.keras_hooks.held_optimizers import adopt_optimizer, held_optimizers
from tfdist.strategies.keras_hooks.replicas.batch_normalization import warn_of_normalization
from tfdist.strategies.keras_hooks.replicas.own_values import kept, of_first
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum
from tfdist.strategies.keras_hooks.replicas.replica_context import NotInLoopError, Replica, entered
from tfdist.strategies.keras_hooks.step_logs import means_over_examples
from tfdist.strategies.keras_hooks.trained_layers import TrainedLayers
from tfdist.strategies.private_api.replica_order import ordered_by_replica
from tfdist.strategies.private_api.user_functions import without_optionals as converting_optionals

_MOST_DRAWS = 1000
"""Of the updates of a step that runs eagerly, with numbers of their own."""


class UnbuiltOptimizersError(Exception):
    """A step that is traced updates variables with optimizers that have none yet. The user never sees it.

    Attributes:
        updates: as (optimizer, variables).
    """

    def __init__(self, updates: Sequence[tuple[Any, Any]]) -> None:
        super().__init__()
        self.updates = updates


class TrainingLoop:
    """What Keras calls as `train_function` or `test_function`: runs up to `steps_per_execution` steps.

    Full batches, batches smaller than the number of replicas, and batches of TensorFlow's distributed datasets have a compiled
    function each. Several steps of an execution run in one function, a loop, if the step returns its metrics and nothing else.

    Args:
        strategy: the strategy.
        layout: the replicas of the cluster and of this task.
        model: the Keras model.
        step: its `train_step` or `test_step`.
        check: the check of the step; None if there is none.
        note: gets this object and the first batch that `train_on_batch` or `test_on_batch` passes.
        agree: see `Replica`. A step that runs eagerly may decide in Python, by its own part of the batch, what it does.
        gather: returns a value per replica as one tensor of the rows of all replicas, in every task.
    """

    def __init__(
        self,
        strategy: Any,
        layout: Layout,
        model: Any,
        step: Callable[..., Any],
        check: ShardCheck | None = None,
        note: Callable[[Any, Any], None] = lambda loop, batch: None,
        agree: Callable[[str], None] | None = None,
        gather: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._strategy = strategy
        self._layout = layout
        self._model = model
        self._check = check
        self._gather = gather
        self._agree = agree if model.run_eagerly else None
        self._metrics = ReplicaMetrics(strategy, layout, model, step)
        self._loops = self._metrics.returns_metrics
        self._uncompiled_step = converting_optionals(model, step)
        self._step = compiled(model, self._uncompiled_step)
        self._trained_layers = TrainedLayers(model) if step == model.train_step else None
        self._assigned: dict[int, Any] = {}  # Keras variables that the step assigns, by id.
        self._functions: dict[Any, Any] = {}
        self._note, self._is_noted = note, False
        self._is_discovered = False  # Whether the optimizers of a step that runs eagerly are.
        self._calls = 0  # Of the functions.

    def __call__(self, iterator: Any) -> Any:
        """Runs the next steps and returns their logs.

        Raises:
            StopIteration: if `iterator` has no more batches.
        """
        steps = self._model.steps_per_execution
        if isinstance(iterator, ShardedIterator):
            iterator.begin_epoch_if_over()
            self._check_step(iterator.peek)
            if steps > 1 and self._loops and not self._is_eager:
                try:
                    done, logs = self._call("loop", iterator.element_spec, iterator.elements, iterator.peeked, steps)
                    iterator.drop_peeked()
                    if int(done) == 0:
                        raise StopIteration
                    return logs
                except NotInLoopError:  # Raised by tracing, before a batch is taken.
                    self._loops = False
        logs = None
        for _ in range(steps if isinstance(iterator, ShardedIterator | tf.distribute.DistributedIterator) else 1):
            try:
                logs = self._one_step(iterator)
                logs = {} if logs is None else logs  # A step of the user's may return nothing.
            except StopIteration:
                break
        if logs is None:
            raise StopIteration
        return logs

    @property
    def _is_eager(self) -> bool:
        """Whether steps run eagerly: by `compile`, or because all functions do (`tf.config.run_functions_eagerly`)."""
        return bool(self._model.run_eagerly or tf.config.functions_run_eagerly())

    def _one_step(self, iterator: Any) -> Any:
        if isinstance(iterator, ShardedIterator):
            elements = iterator.take(1)
            if not elements:
                raise StopIteration
            is_small = int(elements[0]["examples"]) < self._layout.replicas
            return self._call("small" if is_small else "full", iterator.element_spec, elements[0])
        batch = next(iterator)
        if is_distributed(batch):
            return self._call("distributed", None, batch)
        batch = as_tensors(batch)  # train_on_batch, test_on_batch, and an iterator of the program's
        if not self._is_noted:
            self._is_noted = True
            self._model._maybe_symbolic_build(data_batch=batch)  # A program that calls `train_function` has not built metrics.
            self._note(self, batch)
        element = self._layout.split(batch)
        self._check_step(lambda: element)
        return self._call("small", None, element)

    def _check_step(self, batch: Callable[[], Any]) -> None:
        """Tries the step out on two examples of a shard or more, or of all shards. Every task has them, or none."""
        if self._check is None:
            return
        if not self._check.is_open:
            self._check.try_again()
            return
        try:
            element = batch()
        except EmptyDatasetError:
            return
        metric_sums.note(self._metrics.shared_variables())
        try_out(self._check, element, self._layout.replicas, self._gather)
        self._build(self._check.unbuilt)  # Else the step would be traced once for this.

    def _call(self, kind: str, spec: Any, *arguments: Any) -> Any:
        """Calls the compiled function of this kind, and builds the optimizers that it misses first.

        A model may have optimizers of its own, such as a GAN's two. Mirrored variables cannot be made inside a compiled step,
        and only the step knows which optimizer updates which variables. So it is traced anew after its tracing has told.
        """
        self._calls += 1
        if self._is_eager and not self._is_discovered:
            self._discover(*arguments)
        while True:
            try:
                return self._function(kind, spec)(*arguments)
            except UnbuiltOptimizersError as error:
                del self._functions[kind, str(spec)]
                self._build(error.updates)

    def _discover(self, element: Any) -> None:
        """Builds the optimizers of a step that runs eagerly, which is traced for this: it must not run in part."""
        self._is_discovered = True
        if all(optimizer.built for optimizer in held_optimizers(self._model)):
            return
        body = self._step_on_distributed if is_distributed(element) else functools.partial(self._step_on_shards, small=True)
        try:
            tf.function(body, autograph=False).get_concrete_function(element)
        except UnbuiltOptimizersError as error:
            self._build(error.updates)

    def _build(self, updates: Sequence[tuple[Any, Any]]) -> None:
        with self._strategy.scope():
            for optimizer, variables in updates:
                adopt_optimizer(optimizer, self._strategy)
                if not optimizer.built:
                    optimizer.build(variables)

    def _function(self, kind: str, spec: Any) -> Any:
        """Returns the compiled function of this kind for elements of this spec, traced once for all sizes of batches."""
        key = (kind, str(spec))
        if key not in self._functions:
            body = {
                "loop": self._loop,
                "full": lambda element: self._step_on_shards(element, small=False),
                "small": lambda element: self._step_on_shards(element, small=True, cut=spec is None),
                "distributed": self._step_on_distributed,
            }[kind]
            if not self._is_eager:
                signature = [spec] if kind in ("full", "small") and spec is not None else None
                if self._trained_layers is not None:
                    body = self._trained_layers.as_at_first()(body)  # type: ignore[type-var]
                body = tf.function(body, autograph=False, input_signature=signature, reduce_retracing=signature is None)
            self._functions[key] = body
        return self._functions[key]

    # Traced.

    def _step_on_shards(self, element: Any, small: bool, cut: bool = False) -> Any:
        """Runs a step on a batch. If the program has `cut` it, the next one may have other shapes."""
        with self._strategy.extended.tracing():
            shares = self._layout.shares(element["examples"])
            begun = self._metrics.begin()
            logs = self._run(with_unknown_rows(element["shards"]) if cut else element["shards"], shares, small)
            return self._metrics.reduce(begun, per_replica(shares), logs, self._assigned)

    def _loop(self, elements: Any, peeked: Any, limit: tf.Tensor) -> Any:
        """Runs at most `limit` steps and returns `(steps, logs)`. The `cond`s that read have no collective in them."""

        def goes_on(done: Any, element: Any, _: Any) -> Any:
            return tf.logical_and(done < limit, element.has_value())

        def body(done: Any, optional: Any, _: Any) -> Any:
            element = optional.get_value()
            shares = self._layout.shares(element["examples"])
            graph, before = tf.compat.v1.get_default_graph(), len(tf.compat.v1.get_default_graph().get_operations())
            self._run(element["shards"], shares, small=True, looping=True)
            self._metrics.keep(per_replica(shares), self._assigned)  # The next step may read it.
            step = [operation for operation in graph.get_operations()[before:] if operation.op_def.is_stateful]
            with tf.control_dependencies(step):  # A read that fails would end a step in the middle of its updates.
                following = tf.cond(done + 1 < limit, elements.get_next_as_optional, lambda: optional)
            return done + 1, following, shares

        with self._strategy.extended.tracing():
            begun = self._metrics.begin()
            first = tf.cond(peeked.has_value(), lambda: peeked, elements.get_next_as_optional)
            begin = (tf.constant(0), first, [tf.constant(0.0) for _ in self._layout.local])
            done, _, shares = tf.while_loop(goes_on, body, begin, parallel_iterations=1)
            return done, self._metrics.reduce(begun, per_replica(shares), None, self._assigned)

    def _step_on_distributed(self, batch: Any) -> Any:
        """Runs a step on a batch of TensorFlow's distributed dataset, whose size only all replicas together know."""

        def run(shard: Any, share: Any) -> Any:
            return self._on_replica(with_unknown_rows(shard), share, small=True)

        with self._strategy.extended.tracing():
            begun, shares = self._metrics.begin(), self._strategy.run(share_of, args=(batch,))
            logs = self._strategy.run(run, args=(batch, shares))
            return self._metrics.reduce(begun, shares, logs, self._assigned)

    def _run(self, shards: Sequence[Any], shares: list[tf.Tensor], small: bool, looping: bool = False) -> Any:
        return self._strategy.run(
            lambda shard, share: self._on_replica(shard, share, small, looping), args=(per_replica(shards), per_replica(shares))
        )

    def _on_replica(self, shard: Any, share: Any, small: bool, looping: bool = False) -> Any:
        """Runs one replica's step.

        If the batch may be too small for every replica, a replica without examples computes another one's example. It counts
        for nothing: the share is 0, and the replica's metrics get their values back.
        """
        state = Replica(
            self._strategy,
            self._layout.local_index(),
            share,
            rows_of(shard),
            tf.maximum(examples_of(shard), 1),
            batch=shard,
            may_be_empty=small and not looping,
            unbuilt=None if tf.executing_eagerly() else [],
            graph=None if tf.executing_eagerly() else tf.compat.v1.get_default_graph(),
            looping=looping,
            agree=self._agree if tf.executing_eagerly() else None,
            drawn=_MOST_DRAWS * self._calls if tf.executing_eagerly() else 0,
            model=self._model,
        )
        values = [self._strategy.experimental_local_results(v.value)[state.index] for v in self._metrics.variables()]
        state.own_handles = [value.handle for value in values]
        with ordered_by_replica(), entered(state) as replica:
            self._strategy.extended.check_same(shard)
            if not small:
                logs = self._step(shard)
            else:
                before = [(v, tf.identity(v.value)) for v in (*self._metrics.variables(), *self._metrics.shared_variables())]
                logs = self._step(at_least_one(shard))
                for variable, value in before:
                    variable.value.assign(tf.where(share > 0, variable.value, value))
            logs = means_over_examples(logs, replica.rows)
            logs = log_trial.in_full(logs, self._model, self._trained_layers is not None, share)
        if replica.unbuilt:
            raise UnbuiltOptimizersError(replica.unbuilt)
        if replica.agree is not None:
            replica.agree("ends")
        if replica.branches:
            check_updates(replica.branches, replica.graph, replica.own_handles)
        if self._trained_layers is not None and self._layout.replicas > 1 and self._layout.local.start + replica.index == 0:
            warn_of_normalization(self._model, replica, self._layout.replicas)
        self._metrics.of_first |= of_first(replica)
        self._assigned.update(kept(replica))
        return logs


def try_out(check: ShardCheck, element: Any, replicas: int, gather: Callable[[Any], Any]) -> None:
    """Runs the check of a step on a shard of a batch, or on all shards if one has fewer than two examples."""
    examples, shards = int(element["examples"]), [without_optionals(shard) for shard in element["shards"]]
    if examples >= 2 * replicas:
        check.run(shards[0], examples)
    elif examples >= 2 and are_dense(shards[0]):
        check.run(mapped(gather, per_replica(shards)), examples)


def is_distributed(batch: Any) -> bool:
    """Returns whether a batch has values per replica already."""
    return any(isinstance(v, tf.distribute.DistributedValues) for v in tf.nest.flatten(batch))


def share_of(shard: Any) -> Any:
    """Returns the replica's part of a batch of which each replica knows its own shard alone. All of them have to call it."""
    own = tf.cast(examples_of(shard), tf.float32)
    return tf.math.divide_no_nan(own, all_reduce_sum([own])[0])
