"""How optimizers count under Hogwild, where each worker group has its own: schedules follow the steps of all together."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tfdist.strategies.hogwild.local_variable import LocalVariable
from tfdist.strategies.keras_hooks.optimizer import with_inner
from tfdist.strategies.parameter_server.variables import unwrapped
from tfdist.strategies.private_api import LearningRateSchedule, patches

_number_for: Callable[[Any], Any] | None = None
"""In the step that is traced: the number of the step over all groups, for an optimizer."""


def install() -> None:
    """Lets learning-rate schedules follow the steps of all groups together. Calling it again does nothing."""
    patches.LEARNING_RATE.patch(_current_learning_rate)


def _current_learning_rate(original: Callable[..., Any], optimizer: Any) -> Any:
    if _number_for is not None and isinstance(optimizer._learning_rate, LearningRateSchedule):
        return optimizer._learning_rate(_number_for(optimizer))
    return original(optimizer)


@contextlib.contextmanager
def numbered(number_for: Callable[[Any], Any]) -> Iterator[None]:
    """Around the tracing of a step: `number_for(optimizer)` is the number of the step over all groups, an int64 scalar."""
    global _number_for
    outer, _number_for = _number_for, number_for
    try:
        yield
    finally:
        _number_for = outer


def name_of(optimizer: Any) -> str:
    """The name of the class of the optimizer that updates the variables."""
    return type(_innermost(optimizer)).__name__


def steps_of(optimizer: Any) -> int:
    """The number of the next step: how many updates the optimizer has made so far, by the chief's count."""
    counter = unwrapped(getattr(getattr(_innermost(optimizer), "_iterations", None), "_value", None))
    return int(counter.value_on_chief()) if isinstance(counter, LocalVariable) else 0


def _innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", None) or optimizer


def counters_of(model: Any) -> list[LocalVariable]:
    """The counters of the model's optimizers: of that which it was compiled with, and of others in its attributes."""
    own = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    optimizers = [each for optimizer in [model.optimizer, *own] for each in with_inner(optimizer)]
    found = {id(v): v for v in (unwrapped(each._iterations._value) for each in optimizers)}
    return [v for v in found.values() if isinstance(v, LocalVariable)]
