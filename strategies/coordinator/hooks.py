"""What Keras' loop asks of `parameter_server` and `hogwild` alike: the chief runs the loop, worker groups run the steps."""

import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.errors import WorkersGoneError
from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.coordinator.members import made_before
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.coordinator.prediction_loop import PredictionLoop
from tfdist.strategies.coordinator.training_loop import OpenEpochs, Steps, TrainingLoop
from tfdist.strategies.inputs.source import BatchSource
from tfdist.strategies.keras_hooks.checks.own_code import has_own_code
from tfdist.strategies.keras_hooks.checks.shard_check import ShardCheck
from tfdist.strategies.keras_hooks.checks.step_warnings import TOO_LARGE, StepWarnings
from tfdist.strategies.keras_hooks.interface import KerasHooks, Logs, Readers
from tfdist.strategies.keras_hooks.step_logs import with_metrics
from tfdist.strategies.private_api import is_default
from tfdist.strategies.runtime import chief_device

MOST_CHECKED_BYTES = 2**30
"""How large the variables of a model may be whose step is tried out: the chief has to fetch them."""

INTERRUPTED_SECONDS = 2.0
"""How long Ctrl-C waits for the steps in flight. The launcher kills a task 5 seconds after it (`--grace_period`)."""

_log = logging.getLogger("tfdist")


class CoordinatorHooks(KerasHooks):
    """The part of `KerasHooks` that does not depend on what a step is.

    Subclasses implement `step_function`, `predict_function` and `batch_source`, and say of their strategy:

    Attributes:
        name: its name.
        no_xla: why `jit_compile=True` has no effect under it.
        own_loop: what a training loop of the user's own does.
        distributed: why it does not take data that TensorFlow has distributed.
    """

    name: str
    no_xla: str
    own_loop: str
    distributed: str

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._executions: Executions = strategy.executions
        self._loops: weakref.WeakSet[TrainingLoop] = weakref.WeakSet()
        self._open_epochs: OpenEpochs = strategy.open_epochs
        self._has_own_loop = False  # Whether it has been warned of one.
        self._has_batch_callbacks = False  # Whether the last call of Keras' trainer has any that act between predictions.

    def check_own_loop(self) -> None:
        """See `KerasHooks`. The chief makes the update; warns once. Raises ValueError if the model is partitioned.

        Does nothing in a function that `ClusterCoordinator` schedules: a worker runs it.
        """
        if self._strategy.extended.worker_mesh is not None:
            raise ValueError(f"{self.own_loop}. A model that the description of the cluster partitions cannot train otherwise")
        if not self._has_own_loop and not self._strategy.extended._being_scheduled:
            self._has_own_loop = True
            _log.warning("%s", self.own_loop)

    def check_data(self, data: Any) -> None:
        """See `KerasHooks`. Raises ValueError for data that TensorFlow has distributed, or that are lost."""
        made_before.check_data(data)
        if isinstance(data, tf.distribute.DistributedDataset):
            raise ValueError(self.distributed)

    def example_batch(self, source: BatchSource) -> Any:
        """See `KerasHooks`."""
        return source.example()

    def callbacks(self, callbacks: list[Any]) -> list[Any]:
        """See `KerasHooks`. The chief runs all callbacks."""
        methods = ("on_predict_batch_begin", "on_predict_batch_end")
        self._has_batch_callbacks = not all(is_default(getattr(each, name)) for each in callbacks for name in methods)
        return callbacks

    def begin_epoch(self, model: Any, readers: Readers) -> None:
        """See `KerasHooks`."""
        if isinstance(model.train_function, TrainingLoop):
            model.train_function.readers = readers

    def end_epoch(self, model: Any, logs: Logs) -> Logs:
        """See `KerasHooks`. Reads the model's metrics from all worker groups.

        Keras does so only if a step returns exactly the model's metrics. A user's own `train_step` may return others too, or
        nest them, and its last logs know what one worker has counted.
        """
        if logs is not None and (loop := self._open_epochs.innermost_of(model)) is not None:
            # What a callback of `evaluate` has not seen before it stops counts for nothing; steps of a training are made.
            is_stopped = loop is model.test_function and model.stop_evaluating
            logs = loop.finish(logs if is_stopped else None)  # Empty if the step returns nothing, or there was none.
            return loop.metric_logs.with_metrics(logs, model.get_metrics_result()) if logs else logs
        return with_metrics(logs, model.get_metrics_result()) if logs else logs

    def reset_metrics(self, model: Any) -> None:
        """See `KerasHooks`."""
        error = None
        try:
            self._executions.wait_until_idle()
        except WorkersGoneError:
            raise
        except Exception as raised:
            error = raised
        for loop in self._loops:
            loop.reset(error, is_asked=loop in (model.train_function, model.test_function))

    def leave_call(self, error: BaseException) -> None:
        """See `KerasHooks`. Else the steps in flight would change weights that the program loads or saves next.

        After Ctrl-C it waits for `INTERRUPTED_SECONDS` at most, and a program that a signal ends does not wait.
        """
        if not isinstance(error, (Exception, KeyboardInterrupt)):
            return
        self._finish_interrupted(math.inf if isinstance(error, Exception) else INTERRUPTED_SECONDS)

    def count_steps(self) -> None:
        """Waits for the steps in flight, and adds them to the counters of optimizers and to the logs of their epochs."""
        self._finish_interrupted(math.inf)
        self._open_epochs.add_finished()

    def _finish_interrupted(self, seconds: float) -> None:
        try:
            self._open_epochs.leave_interrupted(seconds)
        except Exception:
            _log.warning("a step in flight failed after an exception had left its call", exc_info=True)

    def batches_done(self, model: Any, batches: int) -> int:
        """See `KerasHooks`. Finishes the executions in flight."""
        loop = self._open_epochs.innermost_of(model)
        if loop is None:
            return batches
        self._executions.wait_until_idle()
        return loop.add_finished()

    def metric_values(self, model: Any) -> list[Any]:
        """See `KerasHooks`."""
        return self._metric_logs_of(model).values(model)

    def set_metric_values(self, model: Any, values: list[Any]) -> bool:
        """See `KerasHooks`."""
        return self._metric_logs_of(model).set_values(model, values)

    def _metric_logs_of(self, model: Any) -> MetricLogs:
        assert isinstance(model.train_function, TrainingLoop)
        return model.train_function.metric_logs

    # For subclasses.

    def _training_loop(self, steps: Steps, metric_logs: MetricLogs, check: ShardCheck | None) -> TrainingLoop:
        """Returns Keras' `train_function` or `test_function`."""
        loop = TrainingLoop(steps, metric_logs, self._executions, self._open_epochs, check)
        self._loops.add(loop)
        return loop

    def _shard_check(self, model: Any, step: Callable[..., Any]) -> ShardCheck | None:
        """Returns the check of a step whose batches several replicas share; None for other steps."""
        replicas = self._strategy.num_replicas_in_sync
        if replicas < 2:
            return None
        size = sum(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in model.variables)
        if size > MOST_CHECKED_BYTES:
            if step == model.train_step and has_own_code(model):
                StepWarnings(model, replicas, logs=True).unchecked(TOO_LARGE % (size / 2**30))
            return None

        @contextlib.contextmanager
        def as_replica() -> Iterator[None]:
            with tf.device(chief_device.DEVICE), tf.distribute.ReplicaContext(self._strategy, 0):
                yield

        return ShardCheck(model, step, self._strategy, replicas, as_replica)

    def _check_model(self, model: Any) -> None:
        """Raises ValueError if the model cannot run under this strategy as it was compiled, or on several worker groups."""
        if model.run_eagerly:
            raise ValueError(
                f"run_eagerly=True cannot work under {self.name}: a worker runs compiled functions only. "
                "Leave run_eagerly out, or debug in one process (--tier BASIC)."
            )
        groups, replicas = len(self._strategy.worker_groups), self._strategy.num_replicas_in_sync
        stateful = [layer.name for layer in model._flatten_layers() if getattr(layer, "stateful", False) is True]
        if stateful and groups * replicas > 1:
            why = f"{groups} worker groups compute batches" if groups > 1 else f"{replicas} workers compute parts of a batch"
            raise ValueError(
                f"layer {stateful[0]} is stateful: it continues with each batch from the one before, and under {self.name} "
                f"{why} at the same time. Make the layer with stateful=False, or describe a cluster with one worker group (one "
                "worker)."
            )
        if model.jit_compile is True:
            _log.warning("jit_compile=True has no effect under %s: %s; the model trains without XLA", self.name, self.no_xla)

    def _prediction_loop(self, model: Any, prepare: Callable[..., Callable[[int], Any]]) -> PredictionLoop:
        """Returns Keras' `predict_function`. For `prepare` see `PredictionLoop`."""
        return PredictionLoop(
            model,
            self._executions,
            prepare,
            lambda: self._shard_check(model, model.predict_step),
            lambda: self._has_batch_callbacks,
        )
