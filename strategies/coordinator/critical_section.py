"""A lock on a task: operations of asynchronous worker groups that must not mix."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import run_independently


@contextlib.contextmanager
def critical_section(lock: Any, device: str, arrived: Sequence[Any], independent: bool = False) -> Iterator[None]:
    """Makes the operations created inside hold a lock. Use it while a function is traced.

    Functions of two groups that enter the same section at the same time run one after the other. A group takes the lock only
    when `arrived` has been computed, so that it does not keep the lock while its data travels.

    Args:
        lock: the name of the lock, unique on its device; or the lock itself, as a `MutexV2` resource.
        device: the device that holds the lock, usually that of the variables in the section.
        arrived: tensors that are computed before the lock is taken.
        independent: whether the section may run in any order with other sections of the same function. By default they run in
            the order in which they are traced; otherwise two sections of one function with the same lock and the same variables
            can block each other. Pass True if the function enters the section once.
    """
    graph = tf.compat.v1.get_default_graph()
    with tf.device(device):
        mutex = tf.raw_ops.MutexV2(shared_name=lock) if isinstance(lock, str) else lock
        if independent and mutex is not lock:
            run_independently(mutex.op)
        with tf.control_dependencies(arrived):
            held = tf.raw_ops.MutexLock(mutex=mutex)
    begin = len(graph.get_operations())
    with tf.control_dependencies([held]):
        yield
    inside = [op for op in graph.get_operations()[begin:] if _uses_variable(op.type)]
    with tf.device(device), tf.control_dependencies(inside):
        release = tf.raw_ops.ConsumeMutexLock(mutex_lock=held)
    if independent:
        run_independently(release)


def change_section(variable: Any, arrived: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Makes the operations inside, which change a variable by its value, one change, on the current device.

    All such sections of a device have one lock, and none contains another. Those of a function enter it in the order in which
    they are traced. In its conditions and loops, too, one waits for what was traced before, so none keeps the lock from it.

    Args:
        variable: the variable. No lock is taken in eager execution.
        arrived: as for `critical_section`.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    graph, device = tf.compat.v1.get_default_graph(), variable.device
    if not hasattr(graph, "tfdist_change_locks"):
        graph.tfdist_change_locks = {}
    locks: dict[str, Any] = graph.tfdist_change_locks
    if device not in locks:
        with tf.device(device), tf.control_dependencies(None):
            locks[device] = tf.raw_ops.MutexV2(shared_name="tfdist_changes")
        run_independently(locks[device].op)
    # Reading the variable waits for changes in conditions before this one.
    return critical_section(locks[device], device, [*arrived, variable.value()], independent=True)


def _uses_variable(operation: str) -> bool:
    is_branch = operation in ("If", "Case", "While")
    return is_branch or any(part in operation for part in ("VariableOp", "Assign", "Resource", "StatefulPartitionedCall"))
