"""What a worker group computes with one call under `hogwild`: inner steps on its local replica.

The group synchronizes with the global parameters while the steps run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.calls.group_function import GroupProgram
from tfdist.strategies.coordinator.calls.group_step import GroupStep
from tfdist.strategies.coordinator.members.worker_groups import WorkerGroup
from tfdist.strategies.hogwild.model_blocks import ModelBlocks
from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE
from tfdist.strategies.hogwild.replicas.step_counters import StepCounters, numbered
from tfdist.strategies.hogwild.synchronization.control import CallNumbers, Control
from tfdist.strategies.hogwild.synchronization.local_variable import local_variables
from tfdist.strategies.hogwild.synchronization.push_pull import PushPull
from tfdist.strategies.hogwild.timing.measured_delay import COLUMNS


class InnerSteps(GroupProgram):
    """Makes one step, or one for each batch, and synchronizes blocks of parameters while the steps run.

    The variant of a function is the tuple of the blocks that it synchronizes, by their position in `ModelBlocks.synchronized`,
    and the period if it makes several periods, else 0.

    Args:
        strategy: the strategy.
        blocks: the blocks of the model.
        step: its step on the replicas of a group.
        counters: the counters whose changes each step returns after its result.
        numbers: the numbers that the chief sends with every call.
        stacks_results: whether the function returns the results of all steps, stacked; else it returns that of its only step.
        measures: whether the result of each step has the columns of measured_delay.py at its end.
    """

    def __init__(
        self,
        strategy: Any,
        blocks: ModelBlocks,
        step: GroupStep,
        counters: StepCounters,
        numbers: CallNumbers,
        stacks_results: bool,
        measures: bool,
    ) -> None:
        self.arguments = (numbers.spec,)
        self._strategy = strategy
        self._replicas = strategy.local_replicas
        self._blocks = blocks
        self._step = step
        self._counters = counters
        self._numbers = numbers
        self._stacks_results = stacks_results
        self._waits = strategy.synchronization.delay == 0
        self._measures = measures
        # In the function that is traced: counts of the chief, the group's own, and the number of the first step.
        self._counts: list[Any] = []
        self._begun: list[Any] = []
        self._first_step: Any = None

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
        (chosen, period), servers, home = variant
        with self._strategy.extended.home(home), self._numbers.unpacked(numbers) as (control, count, counts):
            self._counts, self._begun, self._first_step = counts, self._counters.values(), control.step
            if period:
                return self._periods(devices, batch, count, control, chosen, servers, period)
            synchronizations = self._push(chosen, servers, control)
            if stacked:
                results = self._loop(devices, batch, 0, count, control, synchronizations, _results(count))
                return results.stack()
            if self._waits:
                for synchronization in synchronizations:
                    synchronization.pull()
            result = self._one_step(devices, batch(0), control.step)
            if not self._waits:
                for synchronization in synchronizations:
                    synchronization.pull()
            if self._measures:  # One update between two pushes leaves no choice.
                result = tf.concat([result, tf.zeros([COLUMNS], tf.float64)], axis=0)
            return result[None] if self._stacks_results else result

    def _push(self, chosen: tuple[int, ...], servers: int, control: Control) -> list[PushPull]:
        synchronizations = []
        for block in (self._blocks.synchronized[number] for number in chosen):
            own = control if block.rates != AVERAGE else control.with_rates(*AVERAGE)
            synchronizations.append(self._replicas.functions.push_pull(block, servers, own))
        made = [synchronization.rounds_made for synchronization in synchronizations if synchronization.rounds_made is not None]
        fewest = tf.reduce_min(tf.concat(made, axis=0)) if made else None
        for number, synchronization in zip(chosen, synchronizations, strict=True):
            with self._blocks.synchronized[number].place():
                synchronization.push(fewest=fewest)
        return synchronizations

    def _periods(
        self,
        devices: tuple[str, ...],
        batch: Callable[[Any], Any],
        count: Any,
        control: Control,
        chosen: tuple[int, ...],
        servers: int,
        period: int,
    ) -> Any:
        """Makes `count` steps, and synchronizes in each period of them as a call of one period does."""

        def body(first: Any, results: Any) -> Any:
            synchronizations = self._push(chosen, servers, control.with_progress(first > 0))
            last = tf.minimum(first + period, count)
            return last, self._loop(devices, batch, first, last, control, synchronizations, results)

        begin = (tf.constant(0), _results(count))
        return tf.while_loop(lambda first, _: first < count, body, begin, parallel_iterations=1)[1].stack()

    def _loop(
        self,
        devices: tuple[str, ...],
        batch: Callable[[Any], Any],
        first: Any,
        last: Any,
        control: Control,
        synchronizations: Sequence[PushPull],
        results: Any,
    ) -> Any:
        """Makes the steps `first` to `last` - 1, and pulls after the delay. Returns `results` with theirs."""
        pulls_after = tf.minimum(first + control.delay, last)

        def body(number: Any, results: Any) -> Any:
            result = self._one_step(devices, batch(number), control.step + tf.cast(number, tf.int64))
            with tf.control_dependencies([result]):
                measured = [tf.timestamp(), tf.constant(0.0, tf.float64)]

            def pull() -> Any:
                taken = [synchronization.pull_posted(result) for synchronization in synchronizations]
                return tf.reduce_max(tf.stack(taken))

            if synchronizations and not self._waits:
                measured[1] = tf.cond(tf.equal(number + 1, pulls_after), pull, lambda: tf.constant(0.0, tf.float64))
            if self._measures:
                result = tf.concat([result, tf.stack(measured)], axis=0)
            return number + 1, results.write(number, result)

        ready = []
        for synchronization in synchronizations:
            if not self._waits:
                ready.append(synchronization.post_reply())
            else:
                synchronization.pull()
        with tf.control_dependencies(ready):
            begin = (tf.identity(first), results)
            return tf.while_loop(lambda number, _: number < last, body, begin, parallel_iterations=1)[1]

    def _one_step(self, devices: tuple[str, ...], batch: Any, number: Any) -> Any:
        def number_for(optimizer: Any) -> Any:
            # A step may make several updates, or none, as one that accumulates gradients by hand.
            numbers = self._counters.numbers(self._counts, self._begun, number - self._first_step)
            held = [numbers[id(v)] for v in local_variables(optimizer._iterations._value) if id(v) in numbers]
            return held[0] if held else optimizer._iterations

        before = self._counters.values()
        with numbered(number_for):
            outputs, shares = self._step.run(devices, batch)
        return self._counters.with_changes(self._step.result(outputs, shares), before)


def _results(count: Any) -> Any:
    return tf.TensorArray(tf.float64, size=count, infer_shape=False, element_shape=[None])
