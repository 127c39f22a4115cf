"""Keras' predict function for replicas that step together: every task gets the whole output, in the order of the input."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.data_parallel.metrics import ReplicaMetrics
from tfdist.strategies.data_parallel.training_loop import is_distributed, share_of, try_out
from tfdist.strategies.data_parallel.xla import compiled
from tfdist.strategies.inputs.batch_shards import Layout, SplitBatch, at_least_one, per_replica
from tfdist.strategies.inputs.batches import (
    as_tensors,
    concatenated,
    none_without_examples,
    rows_of,
    with_unknown_rows,
    without_optionals,
)
from tfdist.strategies.keras_hooks import step_build
from tfdist.strategies.keras_hooks.checks.shard_check import ShardCheck
from tfdist.strategies.keras_hooks.replicas.own_values import kept, of_first
from tfdist.strategies.keras_hooks.replicas.predicted_numbers import of_whole_batch
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica, entered
from tfdist.strategies.keras_hooks.replicas.same_rows import once
from tfdist.strategies.private_api.replica_order import ordered_by_replica
from tfdist.strategies.private_api.user_functions import without_optionals as converting_optionals


class PredictionLoop:
    """What Keras calls as `predict_function`.

    Args:
        strategy: the strategy.
        layout: the replicas of the cluster and of this task.
        model: the Keras model.
        check: the check of its `predict_step`; None if there is none.
        note: gets this object and the first batch that `predict_on_batch` passes.
        gather: returns a value per replica as one tensor of the rows of all replicas, in every task.
    """

    def __init__(
        self,
        strategy: Any,
        layout: Layout,
        model: Any,
        check: ShardCheck | None,
        note: Callable[[Any, Any], None],
        gather: Callable[[Any], Any],
    ) -> None:
        self._strategy = strategy
        self._layout = layout
        self._model = model
        self._check = check
        self._note, self._is_noted = note, False
        self._gather = gather
        self._step = compiled(model, converting_optionals(model, model.predict_step))
        self._metrics = ReplicaMetrics(strategy, layout, model, model.predict_step)
        self._assigned: dict[int, Any] = {}  # Keras variables that the step assigns, by id.
        self._is_first = True  # Whether no batch has been predicted yet.
        body = self._on_batch
        self._function = body if model.run_eagerly else tf.function(body, reduce_retracing=True, autograph=False)

    def __call__(self, batches: list[Any]) -> Any:
        """Returns the outputs for batches, concatenated."""
        if not self._is_noted and not is_distributed(batches[0]):
            self._is_noted = True
            self._note(self, as_tensors(batches[0]))
        parts = [self._shards_and_shares(batch) for batch in batches]
        if self._is_first:
            shard = tf.nest.map_structure(lambda v: self._strategy.experimental_local_results(v)[0], parts[0][0])
            step_build.build_for_predictions(self._model, without_optionals(shard))
            if self._check is not None and self._check.is_open and _is_cut_here(batches[0]):
                try_out(self._check, self._element(batches[0]), self._layout.replicas, self._gather)
            self._is_first = False
        return concatenated([self._function(*each) for each in parts])

    def _shards_and_shares(self, batch: Any) -> tuple[Any, Any]:
        """Returns the shards of a batch, and which part of its examples each has."""
        if not _is_cut_here(batch):
            return batch, self._strategy.run(share_of, args=(batch,))
        element = self._element(batch)
        return per_replica(element["shards"]), per_replica(self._layout.shares(element["examples"]))

    def _element(self, batch: Any) -> Any:
        return batch.element if isinstance(batch, SplitBatch) else self._layout.split(as_tensors(batch))

    # Traced.

    def _on_batch(self, shards: Any, shares: Any) -> Any:
        with self._strategy.extended.tracing():
            outputs = self._strategy.run(self._on_replica, args=(shards, shares))
            self._metrics.keep(shares, self._assigned)
            return tf.nest.map_structure(self._gather, outputs)

    def _on_replica(self, shard: Any, share: Any) -> Any:
        shard = with_unknown_rows(shard)
        rows = rows_of(shard)
        state = Replica(self._strategy, self._layout.local_index(), share, rows, may_be_empty=True, predicts=True)
        counted = self._metrics.variables()
        before = [tf.identity(self._strategy.experimental_local_results(v.value)[state.index]) for v in counted]
        with ordered_by_replica(), entered(state) as replica:
            self._strategy.extended.check_same(shard)
            outputs = self._step(at_least_one(shard))
            for variable, value in zip(counted, before, strict=True):
                if id(variable) in replica.assigned:  # A repeated example does not count.
                    variable.value.assign(tf.where(share > 0, variable.value, value))
            self._metrics.of_first |= of_first(replica)
            outputs = of_whole_batch(once(outputs, rows), self._model, share)
        self._assigned.update(kept(replica))
        return none_without_examples(outputs, share)


def _is_cut_here(batch: Any) -> bool:
    """Returns whether a batch is cut into shards by tfdist, and not by a distributed dataset of TensorFlow."""
    return isinstance(batch, SplitBatch) or not is_distributed(batch)
