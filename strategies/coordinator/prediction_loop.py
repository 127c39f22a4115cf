"""Keras' predict function where worker groups run the steps: they compute batches ahead of Keras, which wants them in order."""

import weakref
from collections.abc import Callable
from typing import Any

from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.coordinator.calls.group_function import examples_in
from tfdist.strategies.inputs.batches import as_tensors, concatenated, without_optionals
from tfdist.strategies.inputs.input_feed import Batch
from tfdist.strategies.keras_hooks import step_build
from tfdist.strategies.keras_hooks.checks.shard_check import ShardCheck


class PredictionLoop:
    """What Keras calls as `predict_function`.

    Args:
        model: the Keras model.
        executions: the executions in flight.
        prepare: takes a list of one batch and an element specification or None; returns the call that a group runs.
        check: returns the check of its `predict_step`, once the model is built; None if there is none.
        has_batch_callbacks: returns whether a callback of this call acts between predictions.
    """

    def __init__(
        self,
        model: Any,
        executions: Executions,
        prepare: Callable[..., Callable[[int], Any]],
        check: Callable[[], ShardCheck | None],
        has_batch_callbacks: Callable[[], bool],
    ) -> None:
        self._model = model
        self._executions = executions
        self._prepare = prepare
        self._check = check
        self._has_batch_callbacks = has_batch_callbacks
        self._watched: weakref.WeakSet[Any] = weakref.WeakSet()  # Feeds of calls with such callbacks.
        self._is_first = True  # Whether no batch has been predicted yet.

    def __call__(self, batches: list[Any]) -> Any:
        """Returns the outputs for batches, concatenated."""
        if self._is_first:
            first = without_optionals(batches[0].values if isinstance(batches[0], Batch) else as_tensors(batches[0]))
            step_build.build_for_predictions(self._model, first)
            check = self._check()
            if check is not None and check.is_open:
                self._executions.wait_until_idle()
                check.run(first, examples_in(first) or 0)
            self._is_first = False
        return concatenated([self._predict(batch) for batch in batches])

    def _predict(self, batch: Any) -> Any:
        if not isinstance(batch, Batch):  # `predict_on_batch` passes the batch itself.
            self._executions.wait_until_idle()
            return self._executions.result_of(self._executions.schedule(self._prepare([as_tensors(batch)], None)))
        if batch.result is None:  # The first: others are scheduled ahead. All progress so far counts.
            self._executions.wait_until_idle()
        if self._executions.is_exact and self._has_batch_callbacks():
            self._watched.add(batch.feed)  # A callback may assign a weight, or reset a state, before the next batch.
        # Keras wants the outputs one by one and in order. Meanwhile the groups compute the next ones.
        for ahead in (batch, *([] if batch.feed in self._watched else batch.feed.peek(self._executions.limit))):
            if ahead.result is None:
                ahead.result = self._executions.schedule(self._prepare([ahead.values], ahead.feed.owner.element_spec))
        return self._executions.result_of(batch.result)
