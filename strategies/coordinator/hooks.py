"""What Keras' loop asks of `parameter_server` and `hogwild` alike: the chief runs the loop, worker groups run the steps."""

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from tfdist.strategies.coordinator.executions import Executions
from tfdist.strategies.inputs.batches import as_tensors, concatenated
from tfdist.strategies.inputs.input_feed import Batch
from tfdist.strategies.inputs.source import BatchSource
from tfdist.strategies.keras_hooks import trainer
from tfdist.strategies.keras_hooks.interface import KerasHooks, Logs


class TrainingLoop(Protocol):
    """What Keras calls as `train_function` or `test_function`."""

    @property
    def logs(self) -> Logs:
        """The logs of the last execution; None before the first."""

    def __call__(self, iterator: Any) -> Logs:
        """Returns the logs after the next `steps_per_execution` steps. Raises StopIteration at the end of the epoch."""

    def begin(self) -> None:
        """Waits for the executions in flight and discards their results, because metrics start from zero."""

    def finish(self) -> Logs:
        """Waits for the executions in flight at the end of an epoch and returns its logs."""


class CoordinatorHooks(KerasHooks):
    """The part of `KerasHooks` that does not depend on what a step is.

    Subclasses implement `step_function`, `predict_function`, `check_data` and `batch_source`.

    Args:
        strategy: the strategy.
        name: its name, for messages.
        no_xla: why `jit_compile=True` cannot work under it.
    """

    shows_progress = True

    def __init__(self, strategy: Any, name: str, no_xla: str) -> None:
        self._strategy = strategy
        self._name = name
        self._no_xla = no_xla
        self._executions: Executions = strategy.executions
        self._loops: weakref.WeakSet[TrainingLoop] = weakref.WeakSet()

    def example_batch(self, source: BatchSource) -> Any:
        """See `KerasHooks`."""
        return source.example()

    def callbacks(self, callbacks: list[Any]) -> list[Any]:
        """See `KerasHooks`. The chief runs all callbacks."""
        return callbacks

    def end_epoch(self, model: Any, logs: Logs) -> Logs:
        """See `KerasHooks`. Reads the model's metrics from all worker groups.

        Keras does so only if a step returns exactly the model's metrics. A user's own `train_step` may return others too, or
        nest them, and its last logs know what one worker has counted.
        """
        for loop in self._loops:
            if loop.logs is not None and loop in (model.train_function, model.test_function):
                logs = loop.finish()
                break
        else:
            self._executions.finish()
        return trainer.with_metrics(logs, model.get_metrics_result()) if logs else logs

    def reset_metrics(self) -> None:
        """See `KerasHooks`."""
        self._executions.settle()
        for loop in self._loops:
            loop.begin()

    # For subclasses.

    def _check_model(self, model: Any) -> None:
        """Raises ValueError if the model cannot run under this strategy as it was compiled."""
        if model.run_eagerly:
            raise ValueError(
                f"run_eagerly=True cannot work under {self._name}: a worker runs compiled functions only. "
                "Leave run_eagerly away, or debug in one process (--tier BASIC)."
            )
        if model.jit_compile is True:
            raise ValueError(f"jit_compile=True cannot work under {self._name}: {self._no_xla}. Leave jit_compile at 'auto'.")

    def _predict_function(self, prepare: Callable[..., Callable[[int], Any]]) -> Callable[[list[Any]], Any]:
        """Returns Keras' `predict_function`.

        Args:
            prepare: takes a list of one batch and an element specification or None; returns the call that a group runs.
        """
        executions = self._executions

        def predict_one(batch: Any) -> Any:
            if not isinstance(batch, Batch):  # `predict_on_batch` passes the batch itself.
                return executions.result_of(executions.schedule(prepare([as_tensors(batch)], None)))
            # Keras wants the outputs one by one and in order. Meanwhile the groups compute the next ones.
            for ahead in (batch, *batch.feed.peek(executions.limit)):
                if ahead.result is None:
                    ahead.result = executions.schedule(prepare([ahead.values], ahead.feed.owner.element_spec))
            return executions.result_of(batch.result)

        return lambda batches: concatenated([predict_one(batch) for batch in batches])
