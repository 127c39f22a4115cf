"""ParameterServer, asynchronous: TensorFlow's ParameterServerStrategy under which Keras 3's own `fit` works.

Variables live on the ps tasks. Each step is one function that runs on a worker: it reads the variables, computes gradients
and updates them, without waiting for other workers (Downpour). The chief reads the data, hands out the batches, and is the
only one that sees callbacks, files and the progress bar.
"""

import atexit
import logging
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.strategies import ending, keras_trainer
from tfdist.strategies._private import keep_remote_functions, wait_until_ready
from tfdist.strategies.feed import Batch, FedDataset, Feed
from tfdist.strategies.startup import is_listening, wait_for_tasks, waiting_for
from tfdist.strategies.worker_local import WorkerLocalVariable

STEPS_UNDER_WAY_PER_WORKER = 2
"""One step that a worker computes and one that waits for it: enough to keep it busy, few enough to stop soon."""

WORKERS_GONE_SECONDS = 60.0
"""After this long without any worker, training fails: TensorFlow's coordinator would wait for one for ever."""

_log = logging.getLogger("tfdist")


class WorkersGoneError(RuntimeError):
    """Every worker of the cluster stopped answering while steps were under way."""


def create(cluster: Cluster, start_timeout: float) -> "ParameterServer":
    """Waits for the ps and worker tasks, connects to them as the chief, and returns the strategy.

    Raises:
        StartTimeoutError: naming the tasks that were not up within `start_timeout` seconds.
    """
    servers = [task for task in cluster.training_tasks if task.job in ("ps", "worker")]
    _log.debug("waiting for %d ps and worker tasks", len(servers))
    wait_for_tasks(servers, start_timeout, _log.warning)
    # Before the strategy exists: should connecting fail, the servers still learn that this chief is gone.
    atexit.register(_tell_end, servers, os.getpid())
    strategy = ParameterServer(cluster)
    keras_trainer.install()
    return strategy


def _tell_end(servers: list[Task], chief: int) -> None:
    if os.getpid() != chief:
        return  # A forked child of the program ends, not the program.
    # The interpreter records an exception that ended the program before it calls exit functions.
    ending.tell(servers, ending.FAILED if getattr(sys, "last_type", None) else ending.FINISHED)
    keep_remote_functions()


class ParameterServer(tf.distribute.ParameterServerStrategy):
    """`tf.distribute.ParameterServerStrategy` with its coordinator, and with step functions for Keras."""

    def __init__(self, cluster: Cluster) -> None:
        self._tfdist_workers = cluster.job("worker")
        super().__init__(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(cluster.cluster_spec()), task_type="chief", task_id=0, rpc_layer=cluster.protocol
            )
        )
        self._tfdist_create_variable = self._extended._create_variable
        self._extended._create_variable = self._create_variable
        self._tfdist_step_functions: weakref.WeakSet[KerasSteps] = weakref.WeakSet()
        self._tfdist_steps = StepsUnderWay(tf.distribute.coordinator.ClusterCoordinator(self), self._tfdist_workers)

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return WorkerLocalVariable(self, next_creator, **kwargs)
        return self._tfdist_create_variable(next_creator, **kwargs)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """TensorFlow's distributed dataset, which can also be iterated on the chief, as Keras does (see `FedDataset`)."""
        distributed = super().experimental_distribute_dataset(dataset, options)
        return distributed if tf.inside_function() else FedDataset.over(distributed, dataset)

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """TensorFlow's `reduce`; a whole `Batch`, which Keras reduces to learn the shapes for a model, is its own value."""
        if not isinstance(value, Batch):
            return super().reduce(reduce_op, value, axis)
        value.feed.give_back(value)
        value.feed.owner.reuse(value.feed)
        return tf.nest.map_structure(lambda v: None if isinstance(v, tf.experimental.Optional) else v, value.values)

    def make_step_function(self, model: Any, step: Callable[..., Any]) -> Callable[[Any], Any]:
        """See `keras_trainer.StepProvider`. Raises ValueError for an optimizer that was made outside the scope."""
        if getattr(model.optimizer, "_distribution_strategy", self) is not self:
            raise ValueError(
                f"the optimizer of {model.name} was made outside the strategy's scope; make it, and call compile, "
                "inside `with strategy.scope():`"
            )
        steps = KerasSteps(self, model, step, self._tfdist_steps)
        self._tfdist_step_functions.add(steps)
        return steps

    def make_predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """See `keras_trainer.StepProvider`."""
        remote = self._remote_function(model, model.predict_step)
        steps = self._tfdist_steps

        def predict_one(batch: Any) -> Any:
            if not isinstance(batch, Batch):  # predict_on_batch
                return steps.result_of(steps.schedule(remote, _tensors(batch)))
            # Keras wants the outputs one by one and in order; the workers compute the next ones meanwhile.
            for ahead in (batch, *batch.feed.peek(steps.limit)):
                if ahead.result is None:
                    ahead.result = steps.schedule(remote, ahead.values)
            return steps.result_of(batch.result)

        def predict(batches: list[Any]) -> Any:
            outputs = [predict_one(batch) for batch in batches]
            return outputs[0] if len(outputs) == 1 else tf.nest.map_structure(lambda *o: tf.concat(o, axis=0), *outputs)

        return predict

    def finish_steps(self, model: Any, logs: Any) -> Any:
        """See `keras_trainer.StepProvider`."""
        self._tfdist_steps.finish()
        for steps in self._tfdist_step_functions:
            if steps.logs is not None and steps in (model.train_function, model.test_function):
                logs, steps.logs = steps.logs, None
        return logs

    def final_logs(self, model: Any, logs: Any) -> Any:
        """See `keras_trainer`: what is a metric of the model is read from all workers.

        Keras does so where a step returns exactly its metrics. An own `train_step` may return others too, or nest them, and its
        last logs know only what one worker has counted.
        """
        return keras_trainer.with_metrics(logs, model.get_metrics_result())

    def settle(self) -> None:
        """See `keras_trainer.StepProvider`."""
        self._tfdist_steps.settle()
        for steps in self._tfdist_step_functions:
            steps.logs = None

    def _remote_function(self, model: Any, step: Callable[..., Any]) -> Any:
        """`step` as the function that a worker runs; run eagerly, it would run on the chief."""
        if model.run_eagerly:
            raise ValueError(
                "run_eagerly=True cannot work under parameter_server: a worker runs compiled functions only. "
                "Leave run_eagerly away, or debug in one process (--tier BASIC)."
            )
        if model.jit_compile is True:
            raise ValueError(
                "jit_compile=True cannot work under parameter_server: XLA has no access to variables of another task. "
                "Leave jit_compile at 'auto'."
            )
        step = model._autoconvert_optionals(step)

        def remote(data: Any) -> Any:
            return self.run(step, args=(data,))

        return tf.function(remote, reduce_retracing=True, autograph=False)


class StepsUnderWay:
    """Functions that were scheduled on workers and not waited for yet, oldest first. Every wait ends."""

    def __init__(self, coordinator: "tf.distribute.coordinator.ClusterCoordinator", workers: tuple[Task, ...]) -> None:
        self._coordinator = coordinator
        self._workers = workers
        self._oldest_first: deque[tuple[KerasSteps, Any]] = deque()
        self.limit = STEPS_UNDER_WAY_PER_WORKER * len(workers)

    def __len__(self) -> int:
        return len(self._oldest_first)

    def schedule(self, function: Any, data: Any) -> Any:
        """Lets any worker run `function(data)`; returns its RemoteValue."""
        try:
            return self._coordinator.schedule(function, args=(data,))
        except Exception:
            self._drop()
            raise

    def add(self, owner: "KerasSteps", remote_value: Any) -> None:
        """Remembers a scheduled step; while more than `limit` are under way, waits for the oldest."""
        self._oldest_first.append((owner, remote_value))
        while len(self) > self.limit:
            self.wait_for_oldest()

    def wait_for_oldest(self) -> None:
        """Waits for the oldest step and gives its logs to the one that scheduled it."""
        owner, remote_value = self._oldest_first.popleft()
        owner.logs = self.result_of(remote_value)

    def finish(self) -> None:
        """Waits for every step."""
        while self._oldest_first:
            self.wait_for_oldest()

    def settle(self) -> None:
        """Waits for every step of a `fit` that was left in the middle, and drops its errors."""
        if not self._oldest_first:
            return
        try:
            self.finish()
        except WorkersGoneError:
            raise
        except Exception:
            _log.warning("a step of the training before this one failed", exc_info=True)

    def result_of(self, remote_value: Any) -> Any:
        """Waits for one scheduled function and returns its value on the chief.

        Raises:
            WorkersGoneError: when no worker has answered for a minute.
            Exception: what the function raised on the worker.
        """
        last_alive = time.monotonic()
        while not wait_until_ready(remote_value, seconds=5.0):
            now = time.monotonic()
            if any(is_listening(task) for task in self._workers):
                last_alive = now
            elif now - last_alive > WORKERS_GONE_SECONDS:
                self._oldest_first.clear()
                raise WorkersGoneError(
                    f"no worker has answered for {WORKERS_GONE_SECONDS:.0f} s: {waiting_for(self._workers)}; "
                    "training cannot go on without one"
                )
        try:
            return remote_value.get()
        except Exception:
            self._drop()
            raise

    def _drop(self) -> None:
        """After an error: forgets all steps and the coordinator's copy of the error, so that another `fit` starts clean."""
        self._oldest_first.clear()
        try:
            self._coordinator.done()
        except Exception:  # The error that is being raised anyway.
            _log.debug("dropped with the first error", exc_info=True)


class KerasSteps:
    """What Keras calls as `train_function` or `test_function`: `steps_per_execution` batches go to the workers.

    It returns the logs of the latest step of this epoch known to be done: at most `limit` steps behind the one just scheduled,
    exact at the end of the epoch (`finish_steps`).
    """

    def __init__(self, strategy: "ParameterServer", model: Any, step: Callable[..., Any], under_way: StepsUnderWay) -> None:
        self._model = model
        self._under_way = under_way
        self._remote = strategy._remote_function(model, step)
        self.logs: Any = None

    def __call__(self, iterator: Any) -> Any:
        """Schedules the next batches of `iterator`; returns logs; raises StopIteration where it has none."""
        if not isinstance(iterator, Feed):  # train_on_batch, test_on_batch: a generator of one batch
            self._under_way.settle()
            return self._under_way.result_of(self._under_way.schedule(self._remote, _tensors(next(iterator))))
        scheduled = 0
        for batch in _at_most(self._model.steps_per_execution, iterator):
            scheduled += 1
            self._under_way.add(self, self._under_way.schedule(self._remote, batch.values))
        if not scheduled:
            raise StopIteration
        while self.logs is None and len(self._under_way):  # Keras needs the names of the metrics after the first step.
            self._under_way.wait_for_oldest()
        return self.logs


def _at_most(count: int, iterator: Any) -> Any:
    for _, item in zip(range(count), iterator, strict=False):
        yield item


def _tensors(batch: Any) -> Any:
    """A batch of numpy arrays, lists or tensors as tensors; None stays None."""
    return tf.nest.map_structure(lambda v: None if v is None else tf.convert_to_tensor(v), batch)
