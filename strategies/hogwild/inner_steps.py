"""What a worker group computes with one call under `hogwild`: inner steps on its local replica.

The group synchronizes with the global parameters while the steps run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.group_function import GroupProgram
from tfdist.strategies.coordinator.group_step import GroupStep
from tfdist.strategies.coordinator.worker_groups import WorkerGroup
from tfdist.strategies.hogwild.control import CallNumbers, Control
from tfdist.strategies.hogwild.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.push_pull import PushPull
from tfdist.strategies.hogwild.step_counters import StepCounters, numbered
from tfdist.strategies.keras_hooks.optimizer import with_inner


class InnerSteps(GroupProgram):
    """Makes one step, or one for each batch, and synchronizes blocks of parameters while the steps run.

    The variant of a function is the tuple of the blocks, by their position in `blocks`, that it synchronizes.

    Args:
        strategy: the strategy.
        model: the Keras model.
        step: its step on the replicas of a group.
        counters: the counters whose changes each step returns after its result.
        numbers: the numbers that the chief sends with every call.
        stacks_results: whether the function returns the results of all steps, stacked; else it returns that of its only step.

    Attributes:
        blocks: the blocks of parameters that are synchronized.
    """

    def __init__(
        self, strategy: Any, model: Any, step: GroupStep, counters: StepCounters, numbers: CallNumbers, stacks_results: bool
    ) -> None:
        self.arguments = (numbers.spec,)
        self._strategy = strategy
        self._replicas = strategy.local_replicas
        self._model = model
        self._step = step
        self._counters = counters
        self._numbers = numbers
        self._stacks_results = stacks_results
        self.blocks: list[ParameterBlock] = []

    def variant_of(self, group: WorkerGroup, variant: Any) -> Any:
        """See `GroupProgram`. Adds the server group and the device of the local replica."""
        return variant, self._strategy.servers_of(group.number), self._strategy.home_of(group.number)

    def run(self, variant: Any, devices: tuple[str, ...], data: Any, stacked: bool, *arguments: Any) -> Any:
        """See `GroupProgram`."""

        def batch(number: Any) -> Any:
            return tf.nest.map_structure(lambda value: value[number], data) if stacked else data

        return self.run_on(variant, devices, batch, stacked, *arguments)

    def run_on(self, variant: Any, devices: tuple[str, ...], batch: Callable[[Any], Any], stacked: bool, numbers: Any) -> Any:
        """As `run`, on batches that a function supplies.

        Args:
            variant: as `variant_of` returned it.
            devices: the devices of the replicas.
            batch: takes the number of a step, from 0; returns its batch.
            stacked: whether there may be several batches.
            numbers: see `CallNumbers`.
        """
        chosen, servers, home = variant
        with self._strategy.extended.home(home), self._numbers.unpacked(numbers) as (control, count):
            synchronizations = [self._replicas.push_pull(self.blocks[number], servers, control) for number in chosen]
            for synchronization in synchronizations:
                synchronization.push()
            if stacked:
                return self._loop(devices, batch, count, control, synchronizations)
            result = self._one_step(devices, batch(0), control.step)
            for synchronization in synchronizations:
                synchronization.pull()
            return result[None] if self._stacks_results else result

    def _loop(
        self,
        devices: tuple[str, ...],
        batch: Callable[[Any], Any],
        count: Any,
        control: Control,
        synchronizations: Sequence[PushPull],
    ) -> Any:
        def body(number: Any, pulled: list[Any], results: Any) -> Any:
            result = self._one_step(devices, batch(number), control.step + tf.cast(number, tf.int64))
            with tf.control_dependencies([result]):
                pulled = [each.pull_if_arrived(is_pulled) for each, is_pulled in zip(synchronizations, pulled, strict=True)]
            return number + 1, pulled, results.write(number, result)

        results = tf.TensorArray(tf.float64, size=count, infer_shape=False, element_shape=[None])
        with tf.control_dependencies([synchronization.post_reply() for synchronization in synchronizations]):
            begin = (tf.constant(0), [tf.constant(False)] * len(synchronizations), results)
            _, pulled, results = tf.while_loop(lambda number, *_: number < count, body, begin, parallel_iterations=1)
        for synchronization, is_pulled in zip(synchronizations, pulled, strict=True):
            synchronization.pull(is_pulled)
        return results.stack()

    def _one_step(self, devices: tuple[str, ...], batch: Any, number: Any) -> Any:
        own = {id(each) for each in with_inner(getattr(self._model, "optimizer", None))}
        groups = len(self._strategy.worker_groups)

        def number_for(optimizer: Any) -> Any:
            # A model's other optimizers may make more updates than steps, or fewer. Take the group's count times the groups.
            return number if id(optimizer) in own else optimizer._iterations * groups

        before = self._counters.values()
        with numbered(number_for):
            outputs, shares = self._step.run(devices, batch)
        return self._counters.with_changes(self._step.result(devices, outputs, shares), before)
