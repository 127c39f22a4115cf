"""What a step assigns from the old value of a variable, such as a moving average or a counter, with several worker groups.

The step reads the variable, computes, and assigns. What another group assigns in between would be lost. If the new value is

    coefficient * old value + rest

the step sends coefficient and rest, and the ps computes with the value that it holds then. The coefficient keeps a moving
average stable; a sum of the differences that many groups computed from the same old value would not be. For any other function
of the old value a warning names the variable.
"""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.critical_section import change_section
from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.warned import warn_once
from tfdist.strategies.parameter_server import fused_reads
from tfdist.strategies.parameter_server.affine import Affine

_IN_ONE_OPERATION = (tf.float32, tf.float64)
"""The dtypes of which TensorFlow scales and adds to a variable in one operation."""


@dataclass(frozen=True)
class Change:
    """A new value of a variable as a function of the value that the ps holds.

    Attributes:
        coefficient: that of the old value: a number, an array or a tensor.
        rest: what is added, a tensor of the shape of the variable.
    """

    coefficient: Any
    rest: Any

    def apply(self, variable: Any, rest: Any = None, coefficient: Any = None, **kwargs: Any) -> Any:
        """Assigns the new value, on the ps, as one change: another group makes its own before or after.

        Args:
            variable: the variable on the ps.
            rest: `rest` where the update runs.
            coefficient: `coefficient` there, if it is that of a shard.
            **kwargs: not used; what TensorFlow passes to an assignment.
        """
        rest = self.rest if rest is None else rest
        coefficient = self.coefficient if coefficient is None else coefficient
        if isinstance(coefficient, float) and coefficient == 1:
            return variable.assign_add(rest)
        is_average = isinstance(coefficient, float) and 0 < coefficient < 1 and rest.dtype in _IN_ONE_OPERATION
        if is_average and (resource := _resource(variable)) is not None:
            _scale_and_add(resource, coefficient, rest)
            return variable
        rest, kept = tf.identity(rest), tf.cast(1 - coefficient, variable.dtype)
        with change_section(variable, [rest, kept]):
            return variable.assign_add(rest - kept * variable.value())

    def for_shards(self, variable: Any) -> tuple[Any, ...]:
        """Returns the arguments of `apply` that each shard of a variable has its own part of."""
        if len(variable.parts) == 1 or isinstance(self.coefficient, float):
            return (self.rest,)
        return self.rest, tf.broadcast_to(tf.cast(self.coefficient, variable.dtype), variable.shape)


def _resource(variable: Any) -> Any:
    """Returns the resource that holds a variable where it is updated now; None of one that is sharded, as a whole."""
    return variable.handle_for_update() if hasattr(variable, "handle_for_update") else variable.handle


def _scale_and_add(resource: Any, coefficient: float, rest: Any) -> None:
    """Assigns coefficient * value + rest in one operation: a lock takes ten times as much processor time.

    A proximal step without an L1 penalty computes (value - delta) / (1 + l2).
    """
    one, zero = tf.ones([], rest.dtype), tf.zeros([], rest.dtype)
    tf.raw_ops.ResourceApplyProximalGradientDescent(
        var=resource,
        alpha=one,
        l1=zero,
        l2=tf.constant(1 / coefficient - 1, rest.dtype),
        delta=rest * tf.constant(-1 / coefficient, rest.dtype),
        use_locking=True,
    )


def change_of(variable: Any, value: Any, aggregated: bool = True) -> Change | None:
    """Returns how a step changes a variable that it assigns; None if it has to assign the value as it is.

    Args:
        variable: the variable on the ps, `ServerVariable` or `ShardedVariable`.
        value: what is assigned, a tensor.
        aggregated: whether the mean, or the first, of what several replicas assign counts.
    """
    if (replica := _replica_among_groups(variable)) is None:
        return None
    if not tf.is_symbolic_tensor(value):
        note_change(variable, "replace")
        return None
    reads, stale, graphs = fused_reads.current().reads_of(variable)
    if Affine(stale, graphs, variable.shape).depends(value):
        coefficient = None
    else:
        coefficient = Affine(reads, graphs, variable.shape).of(value)
    if isinstance(coefficient, float) and coefficient == 0:
        note_change(variable, "replace")
        return None
    if (
        coefficient is None
        or not aggregated
        or (variable.dtype.is_integer and coefficient != 1)
        or _is_trained(replica, variable)
    ):
        _warn(replica, variable)
        return None
    note_change(variable, "add")
    old = next(read for read in reversed(reads) if read.graph in graphs)
    return Change(coefficient, value - tf.cast(coefficient, value.dtype) * tf.cast(old, value.dtype))


def note_change(variable: Any, change: str) -> None:
    """Notes how a step changes a variable by itself; warns of a sum that it adds to and sets back, as accumulated gradients.

    Args:
        variable: the variable on the ps.
        change: "add", or "replace" for a value that does not depend on the old one.
    """
    if (replica := _replica_among_groups(variable)) is None:
        return
    changes = replica.summed.setdefault(id(variable), set())
    changes.add(change)
    if len(changes) > 1:
        warn_once(
            "a step adds to %s and also sets it to another value: what another worker group adds meanwhile is lost, or counts "
            "twice. Accumulate gradients with the optimizer (gradient_accumulation_steps), or use one worker group",
            variable.name,
        )


def _replica_among_groups(variable: Any) -> Any:
    """Returns the replica whose step is traced, if it changes a variable by itself and several groups do; else None."""
    replica = replica_context.current()
    if replica is None or replica.reduced or tf.executing_eagerly() or replica_context.is_trial():
        return None
    strategy = getattr(variable, "tfdist_strategy", None)
    is_shared = strategy is not None and strategy.extended.has_several_groups
    return replica if is_shared and tf.distribute.get_replica_context() is not None else None


def _variable_of_keras(replica: Any, variable: Any) -> Any:
    """Returns the Keras variable that has `variable`; None if the step has assigned none that has it."""
    held = (v for v in replica.assigned.values() if unwrapped(getattr(v, "_value", None)) is variable)
    return next(held, None)


def _is_trained(replica: Any, variable: Any) -> bool:
    """Returns whether an optimizer has updated a variable in this step: averages of weights may be trainable, and are not.

    If the step does not know a Keras variable for it, that it is trainable has to do.
    """
    of_keras = _variable_of_keras(replica, variable)
    return bool(variable.trainable) if of_keras is None else id(of_keras) in replica.updated


def _warn(replica: Any, variable: Any) -> None:
    of_keras = _variable_of_keras(replica, variable)
    name = variable.name if of_keras is None else of_keras.path
    warn_once(
        "a step assigns %s a value that it computes from the old one, and what another worker group assigns meanwhile is lost. "
        "Use assign_add, or one worker group",
        name,
    )
