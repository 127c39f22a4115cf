"""Counts of updates under `hogwild`: each group counts its own, schedules and the chief follow those of all groups."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable, local_variables
from tfdist.strategies.keras_hooks.held_optimizers import held_optimizers, with_inner
from tfdist.strategies.private_api import LearningRateSchedule, in_stateless_scope, patches
from tfdist.strategies.runtime import chief_device

_number_for: Callable[[Any], Any] | None = None
"""In the step that is traced: returns the number of the step over all groups, for an optimizer."""


def install() -> None:
    """Makes schedules, and what a program adds to a counter, follow the steps of all groups. Calling it again does nothing."""
    patches.LEARNING_RATE.patch(_current_learning_rate)
    for method in patches.ASSIGN_IN_PLACE.values():
        method.patch(_finish_before)


def _current_learning_rate(original: Callable[..., Any], optimizer: Any) -> Any:
    if _number_for is not None and isinstance(optimizer._learning_rate, LearningRateSchedule):
        return optimizer._learning_rate(_number_for(optimizer))
    return original(optimizer)


def _finish_before(original: Callable[..., Any], variable: Any, value: Any) -> Any:
    """Adds to a counter or weight with the steps in flight. Keras reads it before it assigns the sum, which would lack them."""
    if tf.executing_eagerly() and not in_stateless_scope():
        for held in local_variables(variable._value):
            replicas = held.tfdist_strategy.local_replicas
            if held.kind is Kind.COUNTER:
                replicas.count_steps()
            else:
                replicas.chief.finish_steps_on(held)
    return original(variable, value)


@contextlib.contextmanager
def numbered(number_for: Callable[[Any], Any]) -> Iterator[None]:
    """Surrounds the tracing of a step.

    Args:
        number_for: takes an optimizer and returns the number of the step over all groups, an int64 scalar.
    """
    global _number_for
    outer, _number_for = _number_for, number_for
    try:
        yield
    finally:
        _number_for = outer


class StepCounters:
    """The counters (`iterations`) of a model's optimizers, which the chief advances after each execution.

    Args:
        counters: the counters that are known before the first step. Each step may move them by 0, 1 or more.
        measured: whether each step returns their changes. Otherwise every step counts as one.
        groups: number of worker groups.
        moves: whether steps move the counters, as those of a training do.
    """

    def __init__(
        self, counters: Sequence[LocalVariable] = (), measured: bool = True, groups: int = 1, moves: bool = True
    ) -> None:
        self._counters = list(counters)
        self._is_alone = measured and groups == 1
        self._measured = self._counters if measured else []
        self._others: dict[int, LocalVariable] = {}
        self._per_step = [float(moves)] * len(self._counters)  # Updates of each in a step of the execution before.
        self._moves = moves
        # The number of the first step whose changes are not counted, and the counts before it. Threads of groups read them.
        self._counted: tuple[int, list[float]] = (0, [0.0] * len(self._counters))
        self._moved = [0] * len(self._counters)  # `LocalVariable.moved` of each, as far as the counts follow it.

    @property
    def known(self) -> int:
        """How many counters are known."""
        return len(self._counters)

    def begin(self, step: int) -> None:
        """Notes that the step of this number, over all groups, is the next one, and that all before are counted."""
        self._counted = step, [float(counter.value_on_chief()) for counter in self._counters]
        self._moved = [counter.moved for counter in self._counters]

    def follow_assignments(self, steps: LocalVariable | None) -> int:
        """Takes what the program has assigned to the counters since `begin`, in a callback within an epoch.

        Args:
            steps: the counter by which steps are numbered; None if there is none.

        Returns:
            How far the numbers of the next steps move.
        """
        moved = [counter.moved for counter in self._counters]
        changes = [now - before for now, before in zip(moved, self._moved, strict=True)]
        if not any(changes):
            return 0
        (step, counts), self._moved = self._counted, moved
        further = sum(change for counter, change in zip(self._counters, changes, strict=True) if counter is steps)
        self._counted = step + further, [count + change for count, change in zip(counts, changes, strict=True)]
        return further

    def counts_at(self, step: int) -> list[float]:
        """Returns the values of the known counters, over all groups, before the step of this number.

        The chief knows some of them only when other groups have made their steps. They are taken for steps like the last. A
        group that is the only one knows better: for it, these are the counts that the chief has.
        """
        counted, counts = self._counted
        later = 0 if self._is_alone else max(0, step - counted)
        return [count + per_step * later for count, per_step in zip(counts, self._per_step, strict=True)]

    def count_at(self, step: int, counter: LocalVariable | None) -> int:
        """Returns the value of a counter, over all groups, before a step; the number of the step if it is not known."""
        counts = zip(self._counters, self.counts_at(step), strict=True)
        return next((int(count) for known, count in counts if known is counter), step)

    def numbers(self, counts: Sequence[Any], begun: Sequence[Any], steps: Any) -> dict[int, Any]:
        """Returns the numbers of the updates, over all groups, that a step makes, int64 scalars by the ids of the counters.

        Args:
            counts: what the chief has sent of `counts_at` with the call.
            begun: `values` at the begin of the call.
            steps: steps of the call before this one, int64 scalar.
        """
        made = [now - before for now, before in zip(self.values(), begun, strict=True)]
        made = made or [steps if self._moves else 0] * len(self._counters)
        numbers = [tf.cast(count, tf.int64) + tf.cast(more, tf.int64) for count, more in zip(counts, made, strict=True)]
        if self._is_alone:  # The chief has fewer, but for a worker that was restarted.
            numbers = [tf.maximum(number, tf.cast(own, tf.int64)) for number, own in zip(numbers, self.values(), strict=True)]
        return {id(counter): number for counter, number in zip(self._counters, numbers, strict=True)}

    def values(self) -> list[Any]:
        """Returns the measured counters' values, in a function."""
        return [counter.value() for counter in self._measured]

    def with_changes(self, result: Any, before: Sequence[Any]) -> Any:
        """Returns the result of a step, float64 [n], with the changes of the measured counters since `before` at its end."""
        if not before:
            return result
        changes = [counter.value() - begun for counter, begun in zip(self._measured, before, strict=True)]
        return tf.concat([result, tf.cast(tf.stack(changes), tf.float64)], axis=0)

    def add_others(self, variables: Iterable[LocalVariable]) -> None:
        """Notes the counters in `variables` that are not measured. Every step counts as one."""
        measured = {id(counter) for counter in self._measured}
        self._others.update({id(v): v for v in variables if v.kind is Kind.COUNTER and id(v) not in measured})

    def changes(self, results: Any) -> list[tuple[LocalVariable, list[int]]]:
        """Returns how far each step of an execution has moved each counter.

        Args:
            results: what each step returned, numpy float64 [steps, n].
        """
        moved = results[:, results.shape[1] - len(self._measured) :]
        sums = np.sum(moved, axis=0)
        if self._measured:
            self._per_step = (sums / len(results)).tolist()
        step, counts = self._counted
        after = [count + per_step * len(results) for count, per_step in zip(counts, self._per_step, strict=True)]
        self._counted = step + len(results), after
        made = [(v, np.rint(each).astype(int).tolist()) for v, each in zip(self._measured, moved.T, strict=True)]
        return made + [(v, [1] * len(results)) for v in self._others.values()]


def counters_of(model: Any) -> list[LocalVariable]:
    """Returns the counters of the optimizers that the model was compiled with or holds in its attributes."""
    return _unique(each._iterations for each in optimizers_of(model))


def rates_of(model: Any) -> list[LocalVariable]:
    """Returns the learning rates of the same optimizers that are variables, not schedules."""
    return _unique(getattr(each, "_learning_rate", None) for each in optimizers_of(model))


def optimizers_of(model: Any) -> list[Any]:
    """Returns the optimizers of `held_optimizers`, and those inside them."""
    return [each for optimizer in held_optimizers(model) for each in with_inner(optimizer)]


def optimizers_by_variable(model: Any) -> dict[int, Any]:
    """Returns the optimizers of the model by the ids of their variables."""
    held = ((optimizer, variable) for optimizer in optimizers_of(model) for variable in optimizer.variables)
    return {id(v): optimizer for optimizer, variable in held for v in local_variables(variable._value)}


def _unique(variables: Iterable[Any]) -> list[LocalVariable]:
    found = {id(v): v for variable in variables for v in local_variables(getattr(variable, "_value", None))}
    return list(found.values())


def steps_of(optimizer: Any) -> int:
    """Returns how many updates the optimizer has made, by the chief's count: the number of the next step."""
    counter = counter_of(optimizer)
    return 0 if counter is None else int(counter.value_on_chief())


def counter_of(optimizer: Any) -> LocalVariable | None:
    """Returns the counter by which the steps of a model with this optimizer are numbered; None if it has none."""
    counters = local_variables(getattr(getattr(innermost(optimizer), "_iterations", None), "_value", None))
    return counters[0] if counters else None


def learning_rate_of(optimizer: Any) -> Callable[[int], float] | None:
    """Returns a function from the number of an update to the learning rate of an optimizer; None if it has none.

    If the learning rate is a variable, the function returns its value on the chief.
    """
    own = getattr(optimizer, "_learning_rate", None)
    if isinstance(own, LearningRateSchedule):

        def scheduled(step: int) -> float:
            with tf.init_scope(), tf.device(chief_device.DEVICE):  # Groups' threads are on the devices of their workers.
                return float(own(tf.constant(step, tf.int64)))

        return scheduled
    variables = local_variables(getattr(own, "_value", None))
    return (lambda step: float(variables[0].value_on_chief())) if variables else None


def innermost(optimizer: Any) -> Any:
    """Returns the optimizer that updates the variables: that inside a LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", None) or optimizer


def deciding(optimizer: Any, outer_rates: Callable[[str], tuple[float, float]]) -> Any:
    """Returns which of the optimizers inside an optimizer decides the outer rates: that with which an outer step is shortest.

    An outer step that is too long for one of them would make its weights diverge.

    Args:
        optimizer: that of a model, such as a LossScaleOptimizer or a MultiOptimizer.
        outer_rates: returns the outer learning rate and the outer momentum for the name of an optimizer's class.
    """
    updating = [each for each in with_inner(optimizer) if len(with_inner(each)) == 1]

    def length(each: Any) -> float:
        rate, momentum = outer_rates(type(each).__name__)
        return rate / (1 - momentum) if momentum < 1 else math.inf

    # Keras' MultiOptimizer builds those that update something.
    return min([each for each in updating if each.built] or updating, key=length, default=optimizer)
