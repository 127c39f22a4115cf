"""The steps of `parameter_server`: how the chief schedules them, and what a worker group makes of them."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator.calls import call_size
from tfdist.strategies.coordinator.calls.execution import Execution
from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.coordinator.calls.group_function import GroupFunction, GroupProgram, runs_of_equal_shapes
from tfdist.strategies.coordinator.calls.group_step import GroupStep, ReplicaBegin, StepScope
from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.keras_hooks.held_optimizers import with_inner
from tfdist.strategies.keras_hooks.interface import Logs, Readers
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.parameter_server import fused_reads
from tfdist.strategies.parameter_server.turns import Turns
from tfdist.strategies.parameter_server.variables import ServerVariable


class Steps:
    """The steps of a training loop: a worker group gets the next `steps_per_execution` batches as soon as it is free.

    Implements `coordinator.training_loop.Steps`.

    Args:
        model: the Keras model.
        function: the function that makes steps and returns the vectors of `metric_logs`.
        metric_logs: the logs of the steps.
        executions: the executions of the strategy.
        turns: the order in which groups begin; None for none.
    """

    def __init__(
        self, model: Any, function: GroupFunction, metric_logs: MetricLogs, executions: Executions, turns: Turns | None = None
    ) -> None:
        self._model = model
        self._function = function
        self._metric_logs = metric_logs
        self._executions = executions
        self._turns = turns

    def schedule(self, iterator: Any, readers: Readers) -> bool:
        """See `coordinator.training_loop.Steps`."""
        batches = iterator.take(self._model.steps_per_execution)
        if batches:
            self._schedule(batches, iterator.owner.element_spec, iterator)
        return bool(batches)

    def add(self, execution: Execution) -> list[Logs]:
        """See `coordinator.training_loop.Steps`."""
        return self._metric_logs.add(execution, execution.result.numpy()[None])

    def rest(self) -> list[Logs]:
        """See `coordinator.training_loop.Steps`. The last execution of an epoch has reported its steps."""
        return []

    def count_read(self, are_all: bool = False) -> None:
        """See `coordinator.training_loop.Steps`. The ps count."""

    def one_batch(self, batch: Any) -> Logs:
        """See `coordinator.training_loop.Steps`."""
        execution = self._schedule([batch])
        self._executions.result_of(execution)
        return self.add(execution)[0]

    def begin(self) -> None:
        """See `coordinator.training_loop.Steps`."""

    def reset(self) -> None:
        """See `coordinator.training_loop.Steps`."""

    def _schedule(self, batches: list[Any], element_spec: Any = None, owner: Any = None) -> Execution:
        runs = itertools.chain.from_iterable(map(call_size.calls_of, runs_of_equal_shapes(batches)))
        calls = [self._function.prepare(run, element_spec) for run in runs]
        self._metric_logs.begin_steps()

        def run(group: int) -> Any:
            with self._turns.call(group, len(batches)) if self._turns else contextlib.nullcontext():
                return [call(group) for call in calls][-1]

        return self._executions.schedule(run, owner)


class StepFunction(GroupFunction):
    """A step as functions for the worker groups of a strategy. Several groups get their number with each call.

    Groups that look alike run the same function, and have to draw different random numbers (asynchronous_counters.py).
    """

    def __init__(self, strategy: Any, step: GroupStep) -> None:
        super().__init__(strategy, StepProgram(strategy.extended, step))
        self._sends_number = strategy.extended.has_several_groups

    def prepare(self, batches: list[Any], element_spec: Any = None, variant: Hashable = None) -> Callable[[int], Any]:
        """See `GroupFunction`. Returns a call that takes the number of the group alone."""
        call = super().prepare(batches, element_spec, variant)
        return (lambda group: call(group, np.array(group, np.int32))) if self._sends_number else call


class StepProgram(GroupProgram):
    """Makes one step, or one for each batch of a stack. Of several groups it takes the number."""

    def __init__(self, extended: Any, step: GroupStep) -> None:
        self._extended, self._step = extended, step
        if extended.has_several_groups:
            self.arguments = (tf.TensorSpec([], tf.int32),)

    def run(self, variant: Any, devices: tuple[str, ...], data: Any, stacked: bool, *arguments: Any) -> Any:
        """See `GroupProgram`. Returns the result of the last step."""
        with self._extended.in_group(*arguments):
            outputs, shares = self._loop(devices, data) if stacked else self._step.run(devices, data)
            return self._step.result(outputs, shares)

    def _loop(self, devices: tuple[str, ...], data: Any) -> tuple[list[Any], list[Any]]:
        count = tf.shape(tf.nest.flatten(data)[0])[0]
        width = len(devices)

        def body(number: tf.Tensor, before: Any, shares: Any) -> Any:
            outputs, shares = self._step.run(devices, tf.nest.map_structure(lambda value: value[number], data))
            return number + 1, outputs, shares

        begin = (tf.constant(0), [tf.zeros([0], tf.float64)] * width, [tf.constant(0.0)] * width)
        shapes = (tf.TensorShape([]), [tf.TensorShape([None])] * width, [tf.TensorShape([])] * width)
        _, outputs, shares = tf.while_loop(lambda number, *_: number < count, body, begin, shapes, parallel_iterations=1)
        return outputs, shares


def fused_reads_of(model: Any, extended: Any, rounded: bool = False) -> StepScope:
    """Returns a scope in which each device of a replica reads the small variables of `model` with one message per ps.

    Args:
        model: the Keras model.
        extended: the `ServerExtended` of the strategy.
        rounded: whether weights and gradients travel as bfloat16.
    """

    def begin_replica(reads: fused_reads.StepReads, first: str) -> None:
        mesh = extended.worker_mesh
        reads.begin_replica((first,) if mesh is None else mesh.row_of(first))

    @contextlib.contextmanager
    def scope() -> Iterator[ReplicaBegin]:
        with fused_reads.reading(_read_by_each_step(model), rounded) as reads:
            yield functools.partial(begin_replica, reads)
        reads.tables.warn(model)

    return scope


def _read_by_each_step(model: Any) -> list[Any]:
    """Returns the ps' variables that every step reads: the model's, and the optimizer's scalars (learning rate, iterations)."""
    candidates = [*model.variables]
    optimizer = getattr(model, "optimizer", None)
    for owner in with_inner(optimizer):
        candidates += [variable for variable in getattr(owner, "variables", []) if variable.shape.rank == 0]
    values = [unwrapped(getattr(candidate, "_value", None)) for candidate in candidates]
    shards = [unwrapped(shard) for value in values if isinstance(value, SplitVariable) for shard in value.shards]
    found = {id(v): v for v in [*values, *shards]}
    return [variable for variable in found.values() if isinstance(variable, ServerVariable)]
