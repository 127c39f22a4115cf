"""`KerasHooks` of the strategies whose replicas step together."""

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.errors import DifferentCallsError
from tfdist.strategies.data_parallel import orbax
from tfdist.strategies.data_parallel.first_batch import FirstBatch
from tfdist.strategies.data_parallel.gathering import gathered
from tfdist.strategies.data_parallel.prediction_loop import PredictionLoop
from tfdist.strategies.data_parallel.random_state import of_first_task
from tfdist.strategies.data_parallel.same_calls import SameCalls, difference
from tfdist.strategies.data_parallel.same_order import in_same_order
from tfdist.strategies.data_parallel.same_stop import SameStop
from tfdist.strategies.data_parallel.training_loop import TrainingLoop
from tfdist.strategies.data_parallel.writers import without_files
from tfdist.strategies.inputs.batch_shards import Layout, ShardedDataset, per_replica
from tfdist.strategies.inputs.source import EmptyDatasetError
from tfdist.strategies.keras_hooks import calls
from tfdist.strategies.keras_hooks.calls import Call
from tfdist.strategies.keras_hooks.checks.own_code import has_own_step
from tfdist.strategies.keras_hooks.checks.shard_check import ShardCheck
from tfdist.strategies.keras_hooks.interface import KerasHooks, Logs
from tfdist.strategies.keras_hooks.metric_values import assign_metric_values
from tfdist.strategies.keras_hooks.task_requests import TaskRequests
from tfdist.strategies.keras_hooks.trainer import check_optimizer
from tfdist.strategies.model_parallel.refusal import check_model


class DataParallelHooks(KerasHooks):
    """Gives every replica its shard of each batch, and every task the whole outputs and logs.

    Attributes:
        layout: the replicas of the cluster and of this task.
        is_chief: whether this task writes files and shows progress.
    """

    layout: Layout

    def __init__(self, strategy: Any, layout: Layout, is_chief: bool = True) -> None:
        self._strategy = strategy
        self.layout = layout
        self.is_chief = self.shows_progress = is_chief
        self._calls: SameCalls | None = getattr(strategy, "calls", None)
        # Of the data that Keras holds: a `fit` goes on with its own after each validation.
        self._first_batches: list[tuple[weakref.ref[Any], FirstBatch]] = []
        mesh = strategy.extended.mesh
        self._is_shared = len(layout.local) < layout.replicas or (mesh is not None and mesh.others > 0)
        if self._is_shared:
            self.task_requests = TaskRequests()
        self._last_logs: Logs = None  # Those of the last epoch of a `fit`.

    def step_function(self, model: Any, step: Callable[..., Any]) -> Callable[[Any], Logs]:
        """See `KerasHooks`."""
        check_optimizer(model, self._strategy)
        check_model(model, self._strategy.extended.mesh)
        check = self._shard_check(model, step) if self.layout.replicas > 1 else None
        agree = self._agree(model, step)
        loop = TrainingLoop(self._strategy, self.layout, model, step, check, self._note_batch, agree, self._gathered)
        return self._together(loop)

    def _note_batch(self, owner: Any, batch: Any) -> None:
        """Notes a batch that the program itself has given to a call, to be compared as long as `owner` exists."""
        if self._calls is not None:
            first = self._calls.first_batch()
            first.note(batch)
            self._first_batches.append((weakref.ref(owner), first))

    def _agree(self, model: Any, step: Callable[..., Any]) -> Callable[[str], None] | None:
        """Returns what compares the steps of replicas that run eagerly; None for Keras' own step, which always updates."""
        calls, local = self._calls, self.layout.local
        if (calls is None and len(local) == 1) or step != model.train_step or not has_own_step(model):
            return None

        firsts: dict[str, int] = {}

        def in_order(action: str) -> str:
            """Numbers optimizers from the first: where a task has made others before, Keras' names have other numbers."""
            name, _, number = action.rpartition("_")
            if not number.isdecimal():
                name, number = action, "0"
            place = int(number) - firsts.setdefault(name, int(number))
            return f"{name}_{place}" if place else name

        def agree(strategy: Any, actions: Any) -> None:
            steps = [{"call": "a step", "step": action} for action in strategy.experimental_local_results(actions)]
            if fault := difference({f"replica {number}": step for number, step in zip(local, steps, strict=False)}):
                raise DifferentCallsError(fault)
            if calls is not None:
                calls.agree(steps[0])

        return lambda action: tf.distribute.get_replica_context().merge_call(agree, args=(in_order(action),))

    def _shard_check(self, model: Any, step: Callable[..., Any]) -> ShardCheck | None:
        @contextlib.contextmanager
        def as_replica() -> Iterator[None]:
            device = self._strategy.extended.worker_devices[0]
            with tf.device(device), tf.distribute.ReplicaContext(self._strategy, self.layout.local.start):
                yield

        def of_chief(numbers: Any) -> Any:
            return of_first_task(self._strategy, numbers) if self._is_shared else numbers

        mesh, replicas = self._strategy.extended.mesh, self.layout.replicas
        # Tasks of one replica compute a trial together.
        warns = self.layout.local.start == 0 if mesh is not None and mesh.others else self.is_chief
        return ShardCheck(model, step, self._strategy, replicas, as_replica, of_chief, warns, self.is_chief)

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """See `KerasHooks`. Every task gets the whole output, in the order of the input."""
        check = self._shard_check(model, model.predict_step) if self.layout.replicas > 1 else None
        return self._together(PredictionLoop(self._strategy, self.layout, model, check, self._note_batch, self._gathered))

    def _together(self, execute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Lets the other tasks know of long executions, and compares the first batches that the tasks have read."""
        if (calls := self._calls) is None:
            return execute

        def together(batches: Any) -> Any:
            with calls.executing():
                result = execute(batches)
            for _, first in self._first_batches:
                first.compare()
            return result

        return together

    def _gathered(self, value: Any) -> Any:
        return gathered(self._strategy, self.layout.replicas, value)

    def end_epoch(self, model: Any, logs: Logs) -> Logs:
        """See `KerasHooks`. The last execution's logs are those of the epoch; reading the metrics again would be collective."""
        call = calls.running()
        if call is not None and call.name == "fit":
            if logs is self._last_logs:  # An epoch without a step. Keras has those of the epoch before, and reads the metrics.
                return {}
            self._last_logs = logs
        return logs

    def prepared(self, data: Any) -> Any:
        """See `KerasHooks`. Under the policy OFF each task reads its own dataset to the end, in smaller batches.

        Keras would end an epoch after as many of them as the dataset has batches.
        """
        is_apart = isinstance(data, tf.data.Dataset) and self._policy_of(data) == tf.data.experimental.AutoShardPolicy.OFF
        return data.filter(lambda *_: True) if is_apart else data

    def _policy_of(self, dataset: Any) -> Any:
        """Returns tf.data's sharding policy that the user has set; None if one task reads alone."""
        return dataset.options().experimental_distribute.auto_shard_policy if self._is_shared else None

    def batch_source(self, dataset: Any) -> Any:
        """See `KerasHooks`: batch shards, or TensorFlow's distributed dataset if the user has set the policy FILE or OFF."""
        policy, policies = self._policy_of(dataset), tf.data.experimental.AutoShardPolicy
        if policy == policies.FILE:
            return self._strategy.experimental_distribute_dataset(dataset)
        is_apart = policy == policies.OFF
        if self._calls is None:
            return self._strategy.experimental_distribute_dataset(dataset) if is_apart else ShardedDataset(dataset, self.layout)
        for held, compared in self._first_batches:
            if held() is None:
                compared.close()
        self._first_batches = [pair for pair in self._first_batches if pair[0]() is not None]
        first = self._calls.first_batch(is_apart)
        source: Any
        if is_apart:
            source = self._strategy.experimental_distribute_dataset(first.watched(dataset))
        else:
            source = ShardedDataset(in_same_order(dataset), self.layout, first.watch)
        self._first_batches.append((weakref.ref(source), first))
        return source

    def begin_data(self, call: Call, batches: int | None, source: Any) -> None:
        """See `KerasHooks`: compares the calls of the tasks."""
        if self._calls is not None:
            facts: dict[str, Any] = {"call": call.name, "epochs": call.epochs or None, "backups": call.backups}
            if isinstance(source, ShardedDataset):
                facts |= {"batches": batches, "spec": str(source.element_spec)}
            self._calls.agree(facts)

    def example_batch(self, source: Any) -> Any:
        """See `KerasHooks`."""
        if isinstance(source, ShardedDataset):
            return source.example()
        try:
            first = next(iter(source))
        except StopIteration:
            raise EmptyDatasetError from None
        return tf.nest.map_structure(lambda v: self._strategy.experimental_local_results(v)[0], first)

    def callbacks(self, callbacks: list[Any]) -> list[Any]:
        """See `KerasHooks`: on the chief all, elsewhere all but those that only write files, and no files of the others.

        Raises:
            ValueError: for a callback that reads on the chief alone what the tasks of a replica have together.
        """
        mesh = self._strategy.extended.mesh
        if mesh is not None and mesh.others:
            for callback in callbacks:
                if isinstance(callback, keras.callbacks.TensorBoard) and callback.histogram_freq:
                    raise ValueError(
                        f"TensorBoard(histogram_freq={callback.histogram_freq}) reads all weights on the chief alone, and the "
                        "model is sharded over tasks; leave histogram_freq at 0"
                    )
        if self._is_shared:
            orbax.leave_to_chief(callbacks, self.is_chief)
        own = [] if self._calls is None or self.task_requests is None else [SameStop(self._calls, self.task_requests)]
        place = next((k for k, each in enumerate(callbacks) if not getattr(each, "tfdist_reads_batches", True)), len(callbacks))
        callbacks = [*callbacks[:place], *own, *callbacks[place:]]  # Before tfdist's, which may save.
        return callbacks if self.is_chief else without_files(callbacks)

    def metric_values(self, model: Any) -> list[Any]:
        """See `KerasHooks`. Every task has to call it: the values are those of all replicas, one collective for each dtype."""
        variables, values = model.metrics_variables, {}
        sums: dict[str, list[Any]] = {}
        for variable in variables:
            if _is_sum(variable) and isinstance(variable.value, tf.distribute.DistributedValues):
                sums.setdefault(variable.dtype, []).append(variable)
            else:
                values[id(variable)] = variable.numpy()
        for same in sums.values():
            parts = zip(*(self._strategy.experimental_local_results(variable.value) for variable in same), strict=True)
            with contextlib.nullcontext() if self._calls is None else self._calls.executing():
                total = self._sum([[tf.convert_to_tensor(part) for part in own] for own in parts]).numpy()
            ends = np.cumsum([math.prod(variable.shape) for variable in same])
            for variable, value in zip(same, np.split(total, ends[:-1]), strict=True):
                values[id(variable)] = value.reshape(variable.shape)
        return [values[id(variable)] for variable in variables]

    @functools.cached_property
    def _sum(self) -> Any:
        """Returns a function that sums tensors over replicas, flat. Eagerly TensorFlow starts threads for each collective."""

        def total(parts: list[list[tf.Tensor]]) -> tf.Tensor:
            joined = [tf.concat([tf.reshape(part, [-1]) for part in own], axis=0) for own in parts]
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica(joined), axis=None)

        return tf.function(total, autograph=False)

    def set_metric_values(self, model: Any, values: list[Any]) -> bool:
        """See `KerasHooks`. The first replica takes the sums of all."""

        def assign(variable: Any, value: Any) -> None:
            local = self._strategy.experimental_local_results(variable.value)
            for index, replica in zip(self.layout.local, local, strict=False):
                replica.assign(np.zeros_like(value) if _is_sum(variable) and index > 0 else value)

        return assign_metric_values(model, values, assign)


def _is_sum(variable: Any) -> bool:
    """Returns whether the value of a variable of Keras is the sum of those that the replicas have."""
    return bool(variable.synchronization == "on_read" and variable.aggregation == "sum")
