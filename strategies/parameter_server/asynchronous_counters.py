"""What asynchronous worker groups count and add up together: each step and each gradient counts once, each draw is another.

**Counters of steps.** Keras reads a counter when a step begins, decides by it (to apply accumulated gradients, to overwrite
weights by their averages, to raise the loss scale), and adds to it when the step ends. Of several groups at the same time all
may read the same number, or none the one that is waited for. Here a step takes its number in one operation on the ps.

**Counters of random numbers.** Groups that read the same number would draw the same masks, and one that assigns late would set
the counter back. Here a step adds to the counter, and its draws differ from those of other groups by the number of its group,
so it does not have to wait for the ps.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.coordinator.critical_section import critical_section
from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.keras_hooks import build_scope, global_seed
from tfdist.strategies.keras_hooks.own_loops import built_in_own_loop
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.overwritten import is_overwritten
from tfdist.strategies.parameter_server.placement import extended_of
from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable
from tfdist.strategies.private_api import ControlFlowFuncGraph, KerasVariable, in_stateless_scope, patches

GROUP_STRIDE = 1_000_003
"""Distance between the random seeds of two groups. Multiples of it are not those of the distance between two replicas."""


def install() -> None:
    """Replaces the methods of Keras' optimizers. Calling it again does nothing."""
    for apply in patches.APPLY.values():
        apply.patch(_apply)
    patches.ACCUMULATE.patch(_accumulate)
    patches.RESET_ACCUMULATORS.patch(_reset_accumulators)
    patches.FINITE_GRADIENTS.patch(_handle_finite_gradients)
    patches.NEXT_SEED.patch(_next_seed)


class NextNumber:
    """Stands for a counter of Keras while a step is traced: reading it takes the next number.

    Args:
        counter: Keras' variable, an integer scalar.
    """

    def __init__(self, counter: Any) -> None:
        self._counter = counter
        self._taken: Any = None

    @property
    def value(self) -> Any:
        """The number of this step, from 0, an integer scalar. The counter is one more then."""
        if self._taken is None:
            self._taken = _next(unwrapped(self._counter._value)) if _is_first() else tf.constant(-2, self._counter.dtype)
        return self._taken

    @property
    def dtype(self) -> str:
        """The dtype of the counter, as Keras names it."""
        return str(self._counter.dtype)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        """Makes TensorFlow and Keras take the number as a tensor."""
        return self.value if dtype is None else tf.cast(self.value, dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the counter, as Keras gives it."""
        return ()

    __hash__ = object.__hash__

    def assign_add(self, value: Any) -> None:
        """Takes the number if nothing has read it: that adds 1 to the counter."""
        _ = self.value

    def assign(self, value: Any) -> None:
        """Sets the counter, and keeps what other groups have added since this step took its number."""
        if _is_first():
            counter = unwrapped(self._counter._value)
            counter.assign_sub(self.value + 1 - tf.cast(value, counter.dtype))


for _name in tf.Tensor.OVERLOADABLE_OPERATORS:  # Schedules and optimizers of the user's own compute with a counter.
    if hasattr(KerasVariable, _name):
        setattr(NextNumber, _name, getattr(KerasVariable, _name))  # It uses nothing but `value`.


class NextProduct(NextNumber):
    """Stands for Nadam's product of momentum factors while a step is traced: what the step makes of 1 is its own factor."""

    @property
    def value(self) -> Any:
        """1 at first, then the product of the factors of all steps that have taken their number, a scalar."""
        return tf.ones((), self._counter.dtype) if self._taken is None else self._taken

    def assign(self, value: Any) -> None:
        """Multiplies the product by a factor. No other group reads it in between."""
        if _is_first():
            product = unwrapped(self._counter._value)
            with critical_section("tfdist_counters", product.device, [value]), tf.device(product.device):
                self._taken = product.read_parts() * value
                product.assign(self._taken)


class TakenSums:
    """Stands for an accumulator of gradients while a step is traced. The step that uses the sum takes it away.

    What another group adds between reading the sum and taking it away stays for the next update.

    Args:
        accumulator: Keras' variable.
    """

    def __init__(self, accumulator: Any) -> None:
        self.accumulator = accumulator

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        """Makes TensorFlow take the sum as a tensor."""
        variable = unwrapped(self.accumulator._value)
        if not _is_first():  # The first replica makes the update.
            return tf.zeros(variable.shape, dtype or variable.dtype)
        with critical_section("tfdist_accumulators", variable.device, []):
            total = _taken(variable)
        return total if dtype is None else tf.cast(total, dtype)

    def __radd__(self, gradient: Any) -> Any:
        """Returns a gradient, which may be IndexedSlices, plus the sum."""
        return tf.convert_to_tensor(gradient) + tf.convert_to_tensor(self)


def _next(counter: Any, change: Any = 1) -> Any:
    """Returns the value of a counter on a ps and adds to it; no other group gets the same value."""
    with critical_section("tfdist_counters", counter.device, []), tf.device(counter.device):
        number = tf.identity(counter.read_parts())
        with tf.control_dependencies([number]):
            counter.assign_add(tf.constant(change, counter.dtype))
    return number


def _taken(variable: Any) -> Any:
    """Returns the value of a variable and subtracts it. Call it in a critical section."""
    if not isinstance(variable, ServerVariable | ShardedVariable):  # Its shards belong to the devices of a worker.
        total = variable.as_split()
        variable.assign_sub(total)
        return total.whole()
    parts = []
    for part in variable.parts:
        with tf.device(part.device):
            value = tf.identity(part.read_parts())
            with tf.control_dependencies([value]):
                part.assign_sub(value)
        parts.append(value)
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def _is_in_function_of(tensor: Any) -> bool:
    """Returns whether the function that has `tensor`, one of its loops or one of its conditions is traced."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph is tensor.graph


def _is_first() -> bool:
    """Returns whether the replica that is traced makes the updates of its group."""
    replica = replica_context.current()
    return replica is None or replica.index == 0


def _has_several_groups(optimizer: Any) -> bool:
    extended = extended_of(optimizer)
    return extended is not None and extended.has_several_groups and not tf.executing_eagerly()


@contextlib.contextmanager
def _with(optimizer: Any, **attributes: Any) -> Iterator[None]:
    """Replaces attributes of an optimizer, past Keras' tracking of variables."""
    own = vars(optimizer)
    before = {name: own[name] for name in attributes}
    own.update(attributes)
    try:
        yield
    finally:
        own.update(before)


# Replacements. The first parameter is the method that they replace.


def _apply(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    steps, overwrite = optimizer.gradient_accumulation_steps, optimizer.use_ema and optimizer.ema_overwrite_frequency
    if (steps or optimizer.use_ema) and replica_context.current() is None:
        trainable_variables = built_in_own_loop(optimizer, trainable_variables)
    if not optimizer.built or isinstance(optimizer._iterations, NextNumber) or not _has_several_groups(optimizer):
        return original(optimizer, grads, trainable_variables)
    if optimizer.use_ema:
        build_scope.outside_of_steps(optimizer._distribution_strategy, lambda: _begin_averages(optimizer))
    is_nadam = isinstance(optimizer, keras.optimizers.Nadam)
    if not (steps or overwrite or is_nadam):
        return original(optimizer, grads, trainable_variables)
    stand_ins: dict[str, Any] = {"_iterations": NextNumber(optimizer._iterations)}
    if is_nadam:
        stand_ins["_u_product"] = NextProduct(optimizer._u_product)
    if steps:
        stand_ins["_accumulated_gradients"] = _stand_ins_of_sums(optimizer)
    with _with(optimizer, **stand_ins):
        return original(optimizer, grads, trainable_variables)


def _begin_averages(optimizer: Any) -> None:
    """Sets the moving averages of weights (`use_ema`) to the weights, before the first step.

    Keras does so in the first step. Of several groups another step may be earlier, and begin with zeros.
    """
    if int(optimizer.iterations.numpy()) == 0:
        for variable, average in zip(optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True):
            if average is not None:
                average.assign(variable)


def _stand_ins_of_sums(optimizer: Any) -> list[Any]:
    """Returns what stands for the accumulators of an optimizer; those of variables that are overwritten hold no sums."""
    both = zip(optimizer._accumulated_gradients, optimizer._trainable_variables, strict=True)
    return [each if each is None or is_overwritten(variable) else TakenSums(each) for each, variable in both]


def _accumulate(original: Callable[..., Any], optimizer: Any, grads: Any, acc_grads: Any) -> Any:
    if not any(isinstance(each, TakenSums) for each in acc_grads):
        return original(optimizer, grads, acc_grads)
    for gradient, sums in zip(grads, acc_grads, strict=True):
        optimizer.assign_add(sums.accumulator, gradient)
    return None


def _reset_accumulators(original: Callable[..., Any], optimizer: Any) -> Any:
    if not any(isinstance(each, TakenSums) for each in optimizer._accumulated_gradients):
        return original(optimizer)
    return None  # The step that used the sums has taken them away.


def _handle_finite_gradients(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any) -> Any:
    if not _has_several_groups(optimizer):
        return original(optimizer, grads, trainable_variables)
    with _with(optimizer, step_counter=NextNumber(optimizer.step_counter)):
        return original(optimizer, grads, trainable_variables)


def _next_seed(original: Callable[..., Any], generator: Any, ordered: bool = True) -> Any:
    """Draws as an ordered generator does: what Keras assigns otherwise is computed from what another group may have changed."""
    group = None if tf.executing_eagerly() or in_stateless_scope() else _group_of(generator.state._value)
    if group is None or replica_context.is_trial():
        return original(generator, ordered)
    if not _is_in_function_of(group):  # A function of the user is kept for other steps, and must not use a tensor of this one.
        return global_seed.of_replica(_next(unwrapped(generator.state._value), [0, 1]))
    seed = generator.state.value * 1
    generator.state.assign_add([0, 1])
    return global_seed.of_replica(global_seed.moved(seed, group, GROUP_STRIDE))


def _group_of(state: Any) -> Any:
    """Returns the number of the group that draws, a tensor; None if there is one group, and elsewhere."""
    strategy = getattr(unwrapped(state), "tfdist_strategy", None)
    return getattr(getattr(strategy, "extended", None), "group_number", None)
